// Tables that sort, and charts that can be copied. Without it, the page has all its content.
"use strict";

/** Return a chart as Markdown: its run, its result, and its values. */
function markdownOf(figure) {
  const title = figure.querySelector("img")?.alt ?? figure.querySelector("svg").ariaLabel;
  const values = [...figure.querySelectorAll("svg:not(.narrow) use title")].map((mark) => `- ${mark.textContent}\n`);
  return `**${title}** (${document.querySelector("h1").textContent}, run ${document.querySelector("header code").textContent})\n\n${values.join("")}`;
}

document.querySelectorAll("table.values").forEach((table) => sortable(table));
for (const figure of document.querySelectorAll("figure")) {
  figure.append(make("div", { className: "controls copy" }, copyButton("PNG", "image/png", () => pngOf(figure)), copyButton("Markdown", "text/plain", () => markdownOf(figure))));
}
document.body.dataset.ready = "yes";
