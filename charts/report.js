// Sorting, filtering and copying of the tables of a report. Without it, the page has all its content.
"use strict";
for (const table of document.querySelectorAll("table.values")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  // A point is named once; a sorted or filtered row needs the name of its own.
  let point = "";
  for (const row of body.rows) {
    point = row.cells[0].textContent || point;
    row.dataset.point = point;
  }
  const first = [...body.rows];
  const value = (row, column) => {
    const text = column ? row.cells[column].textContent : row.dataset.point;
    const number = parseFloat(text);
    return Number.isNaN(number) || column < 2 ? text : number;
  };
  // Each metric has its unit, so that numbers sort within a metric.
  const metric = (row) => row.cells[1].firstChild.textContent;
  const metrics = [...new Set(first.map(metric))];
  const group = (row, column) => column < 2 ? 0 : metrics.indexOf(metric(row));
  const compare = (a, b) => typeof a === typeof b && typeof a === "number" ? a - b
    : String(a).localeCompare(String(b), undefined, { numeric: true });
  const show = (rows) => {
    let last = null;
    for (const row of rows) {
      row.cells[0].textContent = row.dataset.point === last ? "" : row.dataset.point;
      if (!row.hidden) last = row.dataset.point;
    }
    body.append(...rows);
  };
  const sort = (column) => {
    const head = heads[column];
    const order = { ascending: "descending", descending: "" }[head.getAttribute("aria-sort")] ?? "ascending";
    heads.forEach((cell) => cell.removeAttribute("aria-sort"));
    if (order) head.setAttribute("aria-sort", order);
    const sign = order === "descending" ? -1 : 1;
    show(order ? [...first].sort((a, b) => group(a, column) - group(b, column)
      || sign * compare(value(a, column), value(b, column))) : first);
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    button.onclick = () => sort(column);
    head.replaceChildren(button);
  });
  const bar = document.createElement("div");
  bar.className = "bar";
  if (first.length > 8) {
    const input = document.createElement("input");
    input.type = "search";
    input.placeholder = "filter";
    input.setAttribute("aria-label", "filter the rows");
    input.oninput = () => {
      const words = input.value.toLowerCase().split(/\s+/);
      for (const row of first) {
        const text = `${row.dataset.point} ${row.textContent}`.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      show([...body.rows]);
    };
    bar.append(input);
  }
  const copy = document.createElement("button");
  copy.textContent = "copy";
  copy.title = "copy the shown rows, for a spreadsheet";
  copy.onclick = async () => {
    const lines = [heads.map((head) => head.textContent)];
    for (const row of body.rows) {
      if (!row.hidden) lines.push([row.dataset.point, ...[...row.cells].slice(1).map((cell) => cell.textContent)]);
    }
    await navigator.clipboard.writeText(lines.map((line) => line.join("\t")).join("\n"));
    copy.textContent = "copied";
    setTimeout(() => { copy.textContent = "copy"; }, 1500);
  };
  bar.append(copy);
  table.parentElement.before(bar);
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => { fold.open = true; }));
document.body.dataset.ready = "yes";
