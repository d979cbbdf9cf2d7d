// What the pages of the site share: data that arrive as scripts, tables, and small texts.
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

/** Return a table. A column is {name, cell(row), value(row), number}: `value` sorts where the text of a cell cannot. */
function table(columns, rows, options) {
  const row = (item) => Object.assign(make("tr", {}, ...columns.map((column) => {
    const cell = make("td", { className: column.number ? "n" : column.kind ?? "" }, column.cell(item) ?? "-");
    cell.dataset.name = column.name;
    if (column.value) cell.dataset.value = column.value(item) ?? "";
    return cell;
  })), { item });
  const heads = columns.map((column) => make("th", { className: column.number ? "n" : "" }, column.name));
  const own = make("table", { className: "stack" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows.map(row)));
  const whole = make("div", {}, make("div", { className: "scroll" }, own));
  sortable(own, options);
  return whole;
}

/** Return a picture of the last runs of a series: line, noise of its levels as a band, and its steps with their sizes. */
function bigLine(series, most = 60) {
  const width = 340, height = 96, top = 18, all = series.values.slice(-most), runs = all.map(([run]) => run);
  const shape = (tag, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    element.append(...children);
    return element;
  };
  const known = all.map(([, value], i) => [i, value]).filter(([, value]) => value !== null);
  if (known.length < 2) return null;
  const place = (run) => Math.max(0, runs.findIndex((other) => other >= run));
  const levels = series.levels.map(([run, , low, high], i) => ({ from: place(run), to: series.levels[i + 1] ? place(series.levels[i + 1][0]) : all.length - 1, low, high })).filter(({ from, to, low, high }) => to > from && low !== null && high !== null);
  const bounds = [...known.map(([, value]) => value), ...levels.flatMap(({ low, high }) => [low, high])];
  const low = Math.min(...bounds), range = Math.max(...bounds) - low || 1;
  const x = (i) => 4 + i * (width - 8) / Math.max(1, all.length - 1), y = (value) => height - 4 - (value - low) / range * (height - top - 4);
  const bands = levels.map((level) => shape("rect", { x: x(level.from), y: y(level.high), width: x(level.to) - x(level.from), height: y(level.low) - y(level.high), fill: "var(--grid)", opacity: 0.6 }));
  const steps = series.changes.filter(({ run }) => run > runs[0]).slice(-2).flatMap((change) => {
    const at = x(place(change.run)), fill = `var(--${colours[change.word] ?? "muted"})`;
    return [shape("line", { x1: at, x2: at, y1: top - 4, y2: height, stroke: fill, "stroke-dasharray": "3 3" }),
      shape("text", { x: at, y: 12, fill, "text-anchor": at > width / 2 ? "end" : "start" }, `${change.size} ${dayOf(change.run)}`)];
  });
  const [i, value] = known.at(-1);
  return shape("svg", { class: "line", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${series.name}, the last ${all.length} runs: ${series.answer}` }, ...bands,
    shape("polyline", { points: known.map(([at, own]) => `${x(at).toFixed(1)},${y(own).toFixed(1)}`).join(" "), fill: "none", stroke: "var(--s0)", "stroke-width": 2 }), ...steps,
    shape("circle", { cx: x(i), cy: y(value), r: 3.5, fill: `var(--${colours[series.word] ?? "muted"})` }));
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
