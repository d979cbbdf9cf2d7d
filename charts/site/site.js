// What the pages of the site share: data that arrive as scripts, tables, and small texts.
"use strict";

const perfdag = {
  arrived: new Map(),
  /** Take the data of a script file. */
  add(name, data) { this.arrived.set(name, data); },
};

const files = new Map();

/** Return the data of a file below data/, which is loaded once. `mark` changes with its content. */
function load(name, mark = Date.now()) {
  const src = `data/${name.split("/").map(encodeURIComponent).join("/")}?${mark}`;
  if (!files.has(src)) files.set(src, loadScript(src).then(() => perfdag.arrived.get(name)));
  return files.get(src);
}

function loadScript(src) {
  return new Promise((resolve, reject) => {
    const onerror = () => reject(new Error(`cannot load ${src}; write the site again: perfdag site`));
    document.head.append(make("script", { src, onload: resolve, onerror }));
  });
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
  const scaled = Math.abs(value / factor);
  const losesDigits = value !== 0 && (scaled < 0.1 || scaled >= 1e4);
  const text = losesDigits ? inFittingStep(value, factor, unit) : null;
  return text ?? `${digits(value / factor)} ${unit}`.trim();
}

/** Return a value in the largest step of its unit that it reaches, or null for a unit without steps. */
function inFittingStep(value, factor, unit) {
  const steps = stepsOf(unit);
  const prefix = steps.find(([size]) => size === factor)?.[1];
  if (prefix === undefined) return null;
  const [size, name] = steps.filter(([some]) => some <= Math.abs(value)).at(-1) ?? steps[0];
  return `${digits(value / size)} ${name}${steps === TIMES ? "" : unit.slice(prefix.length)}`;
}

function stepsOf(unit) {
  if (TIMES.some(([, name]) => name === unit)) return TIMES;
  if (/i?B$/.test(unit) && !unit.includes("/")) return SIZES;
  return /\/s$|IOPS$/.test(unit) ? RATES : [];
}

/** Return the spread of the samples of a run of a series, and their number. */
const spreadOf = ({ low, high, n }, { factor }) => `${digits(low / factor)} to ${digits(high / factor)}, n ${n}`;

function percent(part, unit = "%") {
  if (part === null || !isFinite(part)) return "-";
  const text = (100 * part).toFixed(Math.abs(part) < 0.9995 ? 1 : 0); // 100 % and more without decimals
  return `${part >= 0 ? "+" : ""}${text} ${unit}`;
}

/** Return the change of a value of a series: in %, or in its unit where that says more, which of a share is points. */
function changeOf(series, before, after) {
  if (series.relative !== false) return percent(before ? after / before - 1 : NaN);
  if (series.unit === "%") return percent(after - before, "points");
  return `${after >= before ? "+" : ""}${shown(after - before, series)}`;
}

const colours = { good: "good", better: "good", noisy: "noisy", unusable: "noisy", unclear: "noisy", failed: "failed", invalid: "failed", missing: "failed", worse: "bad" };

/** Return a text in the colour of a verdict, a status or a trust; by default the text is one. */
const coloured = (text, title = "", state = text) => make("span", { className: colours[state] ?? "muted", title }, text ?? "-");

/** Return a table. A column is {name, cell(row), value(row), number}: `value` sorts where the text of a cell cannot. */
function table(columns, rows, options) {
  const cellOf = (column, item) => {
    const cell = make("td", { className: column.number ? "n" : column.kind ?? "" }, column.cell(item) ?? "-");
    cell.dataset.name = column.name;
    if (column.value) cell.dataset.value = column.value(item) ?? "";
    return cell;
  };
  const rowOf = (item) => {
    const row = make("tr", {}, ...columns.map((column) => cellOf(column, item)));
    row.item = item; // for those who filter
    return row;
  };
  const heads = columns.map((column) => make("th", { className: column.number ? "n" : "" }, column.name));
  const element = make("table", { className: "stack" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows.map(rowOf)));
  const whole = make("div", {}, make("div", { className: "scroll" }, element));
  sortable(element, options);
  return whole;
}

/** Return a select that reports its choice. */
function select(label, choices, chosen, change) {
  const options = choices.map(([value, text]) => make("option", { value, selected: value === chosen }, text));
  return make("label", {}, `${label} `, make("select", { ariaLabel: label, onchange: (event) => change(event.target.value) }, ...options));
}

/** Show a page: a title, and what `content` returns, of which parts of class "head" stand beside the title. An error becomes one line. */
async function show(title, content) {
  const main = document.querySelector("main");
  document.title = title;
  main.replaceChildren(make("p", { className: "muted" }, "loading"));
  const parts = (await content().catch((error) => [warning(error.message)])).filter(Boolean);
  const isHead = (part) => part.classList.contains("head");
  const clock = document.body.dataset.wall ? make("span", { className: "muted" }, `as of ${new Date().toISOString().slice(11, 16)} UTC`) : null;
  const home = document.body.dataset.page === "index" ? null : make("nav", {}, link("All suites", "index.html"));
  const heading = make("h1", {}, main.dataset.title ?? title);
  main.replaceChildren(make("header", {}, heading, clock, ...parts.filter(isHead), home), ...parts.filter((part) => !isHead(part)));
  document.querySelectorAll(".card .plot").forEach((element) => element.draw());
  document.body.dataset.ready = Math.round(performance.now());
}

/** Return what the site knows of a suite that it has. */
async function headOf(suite) {
  const index = await load("index.js");
  if (!index.suites.includes(suite)) throw new Error(`no suite ${suite ?? ""}; there are ${index.suites.join(", ")}`);
  return load(`${suite}/suite.js`);
}
