// What the pages of the site share: data that arrive as scripts, tables, and small texts.
"use strict";

const perfdag = {
  arrived: new Map(),
  /** Take the data of a script file. */
  add(name, data) { this.arrived.set(name, data); },
};

/** Return the data of a file below data/, which is loaded once. `mark` changes with its content. */
const files = new Map();
function load(name, mark = Date.now()) {
  const src = `data/${name.split("/").map(encodeURIComponent).join("/")}?${mark}`;
  if (!files.has(src)) {
    files.set(src, new Promise((resolve, reject) => {
      const onerror = () => reject(new Error(`cannot load ${src}; write the site again: perfdag site`));
      document.head.append(make("script", { src, onload: () => resolve(perfdag.arrived.get(name)), onerror }));
    }));
  }
  return files.get(src);
}

/** Return all files of a suite whose paths begin so. */
function loadAll(head, ...beginnings) {
  const paths = Object.keys(head.files).filter((path) => beginnings.some((start) => path.startsWith(start)));
  return Promise.all(paths.map((path) => load(`${head.suite}/${path}`, head.files[path])));
}

const parameters = new URLSearchParams(location.search);

/** Return the address of a page of the site with parameters. */
const page = (name, values, anchor = "") =>
  `${name}.html?${new URLSearchParams(values)}${anchor && `#${encodeURIComponent(anchor)}`}`;

const link = (text, href, properties = {}) => make("a", { href, ...properties }, text);

/** Return the start of a run by its id, such as 20261120T020000Z-1a2b3c4d. */
const timeOf = (run) => Date.parse(`${run.slice(0, 4)}-${run.slice(4, 6)}-${run.slice(6, 11)}:${run.slice(11, 13)}:${run.slice(13, 15)}Z`);
const dayOf = (run) => `${run.slice(0, 4)}-${run.slice(4, 6)}-${run.slice(6, 8)}`;
const whenOf = (run) => `${dayOf(run)} ${run.slice(9, 11)}:${run.slice(11, 13)}`;
const monthOf = (run) => `${run.slice(0, 4)}-${run.slice(4, 6)}`;

/** Return a number of three significant digits. */
const digits = (value) => Math.abs(value) >= 1000 && Math.abs(value) < 1e9 ? Math.round(value) : +value.toPrecision(3);

/** Steps of times, of sizes, and of rates; those of a unit have its name behind a prefix. */
const TIMES = [[1e-6, "µs"], [1e-3, "ms"], [1, "s"]];
const SIZES = ["", "Ki", "Mi", "Gi", "Ti", "Pi"].map((prefix, i) => [1024 ** i, prefix]);
const RATES = ["", "k", "M", "G", "T", "P"].map((prefix, i) => [1000 ** i, prefix]);

/** Return a value in the unit of its series, or in another step of it where that would lose its digits. */
function shown(value, { factor, unit }) {
  if (value === null || value === undefined) return "-";
  const scaled = Math.abs(value / factor), time = TIMES.some(([, name]) => name === unit);
  if (value && (scaled < 0.1 || scaled >= 1e4)) {
    const steps = time ? TIMES : /i?B$/.test(unit) && !unit.includes("/") ? SIZES : /\/s$|IOPS$/.test(unit) ? RATES : [];
    const prefix = steps.find(([size]) => size === factor)?.[1], fitting = steps.filter(([size]) => size <= Math.abs(value)).at(-1) ?? steps[0];
    if (prefix !== undefined) return `${digits(value / fitting[0])} ${fitting[1]}${time ? "" : unit.slice(prefix.length)}`;
  }
  return `${digits(value / factor)} ${unit}`.trim();
}
const percent = (part, unit = "%") => part === null || !isFinite(part)
  ? "-" : `${part >= 0 ? "+" : ""}${(100 * part).toFixed(Math.abs(part) < 0.9995 ? 1 : 0)} ${unit}`;

/** Return the change of a value of a series: in %, or in its unit where that says more, which of a share is points. */
const changeOf = (series, before, after) => series.relative !== false ? percent(before ? after / before - 1 : NaN)
  : series.unit === "%" ? percent(after - before, "points") : `${after >= before ? "+" : ""}${shown(after - before, series)}`;

const colours = { good: "good", better: "good", noisy: "noisy", unusable: "noisy", unclear: "noisy", failed: "failed", invalid: "failed", missing: "failed", worse: "bad" };

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

/** Return a select that reports its choice. */
function select(label, choices, chosen, change) {
  const options = choices.map(([value, text]) => make("option", { value, selected: value === chosen }, text));
  return make("label", {}, `${label} `, make("select", { ariaLabel: label, onchange: (event) => change(event.target.value) }, ...options));
}

/** Show a page: a title, and what `content` returns. An error becomes one line. */
async function show(title, content) {
  const main = document.querySelector("main");
  document.title = title;
  main.replaceChildren(make("p", { className: "muted" }, "loading"));
  const parts = await content().catch((error) => [warning(error.message)]);
  const clock = document.body.dataset.wall ? make("span", { className: "muted" }, `as of ${new Date().toISOString().slice(11, 16)} UTC`) : null;
  const home = document.body.dataset.page === "index" ? null : make("nav", {}, link("All suites", "index.html"));
  const shown = parts.filter(Boolean), isHead = (part) => part.classList.contains("head");
  main.replaceChildren(make("header", {}, make("h1", {}, main.dataset.title ?? title), clock, ...shown.filter(isHead), home), ...shown.filter((part) => !isHead(part)));
  document.querySelectorAll(".card .plot").forEach((element) => element.draw());
  document.body.dataset.ready = Math.round(performance.now());
}

/** Return what the site knows of a suite that it has. */
async function headOf(suite) {
  const index = await load("index.js");
  if (!index.suites.includes(suite)) throw new Error(`no suite ${suite ?? ""}; there are ${index.suites.join(", ")}`);
  return load(`${suite}/suite.js`);
}
