// Tables that sort, charts that can be copied, and what is folded on paper. Without it, the page has all its content.
"use strict";

/** Return a chart as Markdown: its run, its result, and its values. */
function markdownOf(figure) {
  const title = figure.querySelector("img")?.alt ?? figure.querySelector("svg").ariaLabel;
  const values = [...figure.querySelectorAll("svg:not(.narrow) use title")].map((mark) => `- ${mark.textContent}\n`);
  return `**${title}** (${document.querySelector("h1").textContent}, run ${document.querySelector("header code").textContent})\n\n${values.join("")}`;
}

document.querySelectorAll("table.values").forEach((table) => sortable(table));
for (const figure of document.querySelectorAll("figure")) {
  figure.after(make("div", { className: "controls copy" }, copyButton("PNG", "image/png", () => pngOf(figure)), copyButton("Markdown", "text/plain", () => markdownOf(figure))));
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => { fold.open = true; }));
document.body.dataset.ready = "yes";
