// What all pages of the site share: data that arrive as scripts, elements, tables, small texts.
"use strict";

const perfdag = {
  arrived: new Map(),
  /** Take the data of a script file. */
  add(name, data) { this.arrived.set(name, data); },
};

/** Load a script once. */
const scripts = new Map();
function loadScript(address) {
  if (!scripts.has(address)) {
    scripts.set(address, new Promise((resolve, reject) => {
      const element = document.createElement("script");
      element.src = address;
      element.onload = resolve;
      element.onerror = () => reject(new Error(`cannot load ${address}; write the site again: perfdag site`));
      document.head.append(element);
    }));
  }
  return scripts.get(address);
}

/** Return the data of a file below data/. `mark` changes with its content. */
async function load(name, mark) {
  const path = name.split("/").map(encodeURIComponent).join("/");
  await loadScript(`data/${path}?${mark ?? Date.now()}`);
  return perfdag.arrived.get(name);
}

/** Return all files of a suite whose paths begin so. */
function loadAll(head, ...beginnings) {
  const paths = Object.keys(head.files).filter((path) => beginnings.some((start) => path.startsWith(start)));
  return Promise.all(paths.map((path) => load(`${head.suite}/${path}`, head.files[path])));
}

const loadLibrary = () => loadScript(document.body.dataset.library);

/** Return an element. Text becomes text nodes, so no markup can come out of data. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value; else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const parameters = new URLSearchParams(location.search);

/** Return the address of a page of the site with parameters. */
const page = (name, values, anchor = "") =>
  `${name}.html?${new URLSearchParams(values)}${anchor && `#${encodeURIComponent(anchor)}`}`;

const link = (text, href, properties = {}) => make("a", { href, ...properties }, text);

/** Return milliseconds of the start of a run, by its id such as 20261120T020000Z-1a2b3c4d. */
const timeOf = (run) => Date.UTC(run.slice(0, 4), run.slice(4, 6) - 1, run.slice(6, 8), run.slice(9, 11), run.slice(11, 13), run.slice(13, 15));
const dayOf = (run) => `${run.slice(0, 4)}-${run.slice(4, 6)}-${run.slice(6, 8)}`;
const whenOf = (run) => `${dayOf(run)} ${run.slice(9, 11)}:${run.slice(11, 13)}`;
const monthOf = (run) => `${run.slice(0, 4)}-${run.slice(4, 6)}`;

/** Return a number of three significant digits. */
const digits = (value) => Math.abs(value) >= 1000 && Math.abs(value) < 1e9 ? Math.round(value) : +value.toPrecision(3);

/** Return a value in the unit of its series. */
const shown = (value, series) => value === null || value === undefined
  ? "-" : `${digits(value / series.factor)} ${series.unit}`.trim();
const percent = (part, sign = true) => part === null || !isFinite(part)
  ? "-" : `${sign && part > 0 ? "+" : ""}${(100 * part).toFixed(1)} %`;

const colours = {
  good: "good", passed: "good", ok: "good", better: "good",
  noisy: "noisy", unusable: "noisy", inconclusive: "noisy", unclear: "noisy",
  failed: "bad", invalid: "bad", missing: "bad", worse: "bad",
};

/** Return a text in the colour of a word, by default of itself. */
const word = (text, title = "", of = text) => make("span", { className: colours[of] ?? "muted", title }, text ?? "-");

/** Return a table that sorts by its headings, with a filter above where it is long.
 * A column is {name, cell(row), value(row), number}. `value` sorts and filters. */
function table(columns, rows, { most = 100, label = "rows" } = {}) {
  const body = make("tbody"), count = make("span", { className: "muted small" });
  const more = make("button", { type: "button" }, "Show all");
  const filter = make("input", { type: "search", placeholder: "filter, such as 'streams=4 worse'", ariaLabel: `filter ${label}` });
  let sorted = rows, order = null, down = false, limit = most;
  const key = (column, row) => (column.value ?? ((r) => column.cell(r)))(row);
  const text = (row) => columns.map((column) => key(column, row)).join(" ").toLowerCase();
  const texts = new Map(rows.map((row) => [row, text(row)]));
  function draw() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = sorted.filter((row) => words.every((part) => texts.get(row).includes(part)));
    body.replaceChildren(...kept.slice(0, limit).map((row) => make("tr", {}, ...columns.map((column) => {
      const cell = make("td", { className: column.number ? "n" : column.kind ?? "" }, column.cell(row) ?? "-");
      cell.dataset.name = column.name;
      return cell;
    }))));
    count.textContent = kept.length === rows.length ? `${rows.length} ${label}` : `${kept.length} of ${rows.length} ${label}`;
    more.hidden = kept.length <= limit;
  }
  const headings = columns.map((column) => {
    const button = make("button", { type: "button", title: `sort by ${column.name}` }, column.name);
    const cell = make("th", { className: column.number ? "n" : "", ariaSort: "none" }, button);
    button.onclick = () => {
      down = order === column ? !down : Boolean(column.number);
      order = column;
      const compare = (a, b) => {
        const [x, y] = [key(column, a), key(column, b)];
        if (x === y) return 0;
        if (x === null || x === undefined || x === "-") return 1;
        if (y === null || y === undefined || y === "-") return -1;
        return (x < y ? -1 : 1) * (down ? -1 : 1);
      };
      sorted = [...rows].sort(compare);
      headings.forEach((other) => { other.ariaSort = "none"; });
      cell.ariaSort = down ? "descending" : "ascending";
      draw();
    };
    return cell;
  });
  filter.oninput = draw;
  more.onclick = () => { limit = Infinity; draw(); };
  draw();
  const head = make("div", { className: "controls" }, rows.length > 8 ? filter : null, count);
  return make("div", {}, head, make("div", { className: "scroll" }, make("table", { className: "stack" },
    make("thead", {}, make("tr", {}, ...headings)), body)), more);
}

/** Return a picture of the last runs of a series: line, noise of its levels as a band, and its steps with their sizes. */
function bigLine(series, most = 60) {
  const width = 340, height = 96, top = 18, all = series.values.slice(-most), runs = all.map(([run]) => run);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const shape = (tag, attributes, text = "") => {
    const element = document.createElementNS(svg.namespaceURI, tag);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    element.textContent = text;
    svg.append(element);
  };
  Object.entries({ class: "line", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${series.name}, the last ${all.length} runs: ${series.answer}` }).forEach(([name, value]) => svg.setAttribute(name, value));
  const known = all.map(([, value], i) => [i, value]).filter(([, value]) => value !== null);
  if (known.length < 2) return null;
  const place = (run) => Math.max(0, runs.findIndex((other) => other >= run));
  const levels = series.levels.map(([run, , low, high], i) => ({ from: place(run), to: series.levels[i + 1] ? place(series.levels[i + 1][0]) : all.length - 1, low, high })).filter(({ from, to, low, high }) => to > from && low !== null && high !== null);
  const bounds = [...known.map(([, value]) => value), ...levels.flatMap(({ low, high }) => [low, high])];
  const low = Math.min(...bounds), range = Math.max(...bounds) - low || 1;
  const x = (i) => 4 + i * (width - 8) / Math.max(1, all.length - 1), y = (value) => height - 4 - (value - low) / range * (height - top - 4);
  for (const level of levels) shape("rect", { x: x(level.from), y: y(level.high), width: x(level.to) - x(level.from), height: y(level.low) - y(level.high), fill: "var(--grid)", opacity: 0.6 });
  shape("polyline", { points: known.map(([i, value]) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" "), fill: "none", stroke: "var(--s0)", "stroke-width": 2 });
  for (const change of series.changes.filter(({ run }) => run > runs[0]).slice(-2)) {
    const at = x(place(change.run)), fill = `var(--${colours[change.word] ?? "muted"})`;
    shape("line", { x1: at, x2: at, y1: top - 4, y2: height, stroke: fill, "stroke-dasharray": "3 3" });
    shape("text", { x: at, y: 12, fill, "text-anchor": at > width / 2 ? "end" : "start" }, `${change.size} ${dayOf(change.run)}`);
  }
  const [i, value] = known.at(-1);
  shape("circle", { cx: x(i), cy: y(value), r: 3.5, fill: `var(--${colours[series.word] ?? "muted"})` });
  return svg;
}

/** Return a select that reports its choice. */
function select(label, choices, chosen, change) {
  const list = make("select", { ariaLabel: label }, ...choices.map(([value, text]) => make("option", { value, selected: value === chosen }, text)));
  list.onchange = () => change(list.value);
  return make("label", {}, `${label} `, list);
}

/** Show a page: a title, and what `content` returns. An error becomes one line. */
async function show(title, content) {
  const main = document.querySelector("main");
  document.title = title;
  main.replaceChildren(make("p", { className: "muted" }, "loading"));
  const parts = await content().catch((error) => [make("p", { className: "alert" }, error.message)]);
  const nav = document.body.dataset.page === "index" ? "" : make("nav", {}, link("All suites", "index.html"));
  main.replaceChildren(nav, make("h1", {}, title), ...parts.filter(Boolean));
  document.body.dataset.ready = Math.round(performance.now());
}

/** Return what the site knows of a suite that it has. */
async function headOf(suite) {
  const index = await load("index.js");
  if (!index.suites.includes(suite)) throw new Error(`no suite ${suite ?? ""}; there are ${index.suites.join(", ")}`);
  return load(`${suite}/suite.js`);
}
