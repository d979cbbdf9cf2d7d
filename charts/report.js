// Tables that sort, and charts that can be copied. Without it, the page has all its content.
"use strict";

/** Return a chart as Markdown: its run, its result, and its values. */
function markdownOf(figure) {
  const title = figure.querySelector("img")?.alt ?? figure.querySelector("svg").ariaLabel;
  const values = [...figure.querySelectorAll("svg:not(.narrow) use title")].map((mark) => `- ${mark.textContent}\n`);
  return `**${title}** (${document.querySelector("h1").textContent}, run ${document.querySelector("header code").textContent})\n\n${values.join("")}`;
}

/** Draw the spread of each row of a table as a bar, on one scale for each metric. */
function drawIntervals(table) {
  const cells = [...table.querySelectorAll("td[data-high]")], metricOf = (cell) => cell.parentElement.cells[1].textContent, largest = new Map();
  for (const cell of cells) largest.set(metricOf(cell), Math.max(largest.get(metricOf(cell)) ?? 0, +cell.dataset.high));
  for (const cell of cells) {
    const whole = largest.get(metricOf(cell)) || 1, from = Math.max(0, 100 * cell.dataset.value / whole), to = Math.max(from, 100 * cell.dataset.high / whole);
    cell.prepend(make("span", { className: "interval" }, make("i", { style: `margin-left: ${Math.min(from, 98)}%; width: ${Math.max(2, to - from)}%` })));
  }
}

document.querySelectorAll("table.values").forEach(drawIntervals);
document.querySelectorAll("table.values").forEach((table) => sortable(table));
for (const figure of document.querySelectorAll("figure")) {
  figure.append(make("div", { className: "controls copy" }, copyButton("PNG", "image/png", () => pngOf(figure)), copyButton("Markdown", "text/plain", () => markdownOf(figure))));
}
document.body.dataset.ready = "yes";
