// The pages: the suites, the history of a suite, a benchmark over all suites, and two runs compared.
"use strict";

const ENOUGH_RUNS = 60;
const MOST_RUNS = 400;
const SQUARES = 30;
/** Letters of a sentence, and of the name of a suite, above which a wall shows smaller ones. */
const LONG = 70;
const LONG_NAME = 16;
/** The kinds of verdicts, the one that matters most first. */
const KINDS = ["failed", "worse", "better", "unclear", "same"];

// What the files of a suite have: series, values, runs.

const newestMonths = (head, enough) => [...new Set(head.runs.slice(-enough).map(([run]) => monthOf(run)))];

/** Return the values of series by id, each a list of points, oldest first, in the months that `monthsOf` gives of a suite. */
async function pointsOf(series, monthsOf) {
  const points = new Map();
  for (const head of new Set(series.map((line) => line.head))) {
    const clusterOf = new Map(head.runs.map(([run, cluster]) => [run, cluster]));
    const folders = new Set(series.filter((line) => line.head === head).map((line) => line.folder));
    const paths = [...folders].flatMap((folder) => monthsOf(head).map((month) => `values/${folder}/${month}.js`));
    for (const block of await loadAll(head, ...paths)) addPoints(points, block, clusterOf);
  }
  for (const list of points.values()) list.sort((a, b) => a.run < b.run ? -1 : 1);
  return points;
}

/** Add the points of a file of values to those of each series. */
function addPoints(points, block, clusterOf) {
  for (const [id, [values, lows, highs, counts]] of Object.entries(block.series)) {
    const list = points.get(id) ?? [];
    block.runs.forEach((run, i) => {
      if (values[i] !== null) list.push({ run, cluster: clusterOf.get(run), value: values[i], low: lows[i], high: highs[i], n: counts[i] });
    });
    points.set(id, list);
  }
}

/** Return the points of a series on its cluster. */
const pointsOnCluster = (series, points) => (points.get(series.id) ?? []).filter(({ cluster }) => cluster === series.cluster);

/** Return the series of a suite, of all benchmarks or of one, each with its suite's head and the folder of its benchmark. */
async function seriesOf(head, benchmark) {
  const files = await loadAll(head, benchmark ? `series/${benchmark}.js` : "series/");
  const withoutValue = { verdict: "failed", headline: true, noise: "-", newest: null, levels: [], changes: [], left: null, drift: null }; // a failed point
  return files.flatMap(({ folder, series }) => series.map((line) => ({ ...withoutValue, ...line, head, folder })));
}

/** Return the runs of some months of a suite, newest first. */
async function runsOf(head, enough) {
  const files = await loadAll(head, ...newestMonths(head, enough).map((month) => `runs/${month}.js`));
  return files.flatMap((file) => file.runs).sort((a, b) => a.id < b.id ? 1 : -1);
}

/** Return the names of the benchmarks that suites have series of. */
function benchmarksOf(heads) {
  const paths = heads.flatMap((head) => Object.keys(head.files)).filter((path) => path.startsWith("series/"));
  return [...new Set(paths.map((path) => path.slice("series/".length, -".js".length)))].sort();
}

/** Return the run before one, of the same cluster. */
function before(head, run, cluster) {
  const earlier = head.runs.filter(([id, name, trigger]) => id < run && name === cluster && trigger !== "part");
  return earlier.at(-1)?.[0];
}

// What is said of series and runs in words.

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const rank = (line) => KINDS.indexOf(line.verdict);
const mainSeries = (series) => series.some((line) => line.headline) ? series.filter((line) => line.headline) : series;
const isFirstRun = (series) => series.text === "unclear: no earlier run";

/** Return the level of a series that changed, which stands beside its newest value. */
const levelOf = (line) => ["worse", "better"].includes(line.verdict) && line.changes.length ? `, level ${shown(line.levels.at(-1)[1], line)}` : "";

/** Return the text of a verdict without its kind: "-12 % since 2026-01-23". */
const sizeOf = (line) => line.text.replace(line.verdict, "").replace(/^[: ]+/, "");

/** Return how many verdicts there are of each kind. */
function counted(verdicts) {
  const kinds = ["failed", "worse", "better", "same", "unclear"].filter((kind) => verdicts.includes(kind));
  return kinds.map((kind) => `${verdicts.filter((other) => other === kind).length} ${kind === "unclear" ? "cannot be judged" : kind}`).join(", ");
}

/** Return the sentence about some series: what matters most of them, by its name; or their numbers. */
function sentenceOf(series, state, numbers) {
  const deciding = series.filter((line) => line.verdict === state);
  const [first] = deciding;
  if (["failed", "worse", "better"].includes(state)) {
    const more = deciding.length > 1 ? `, and ${deciding.length - 1} more` : "";
    return `${capital(state)}: ${first.label} ${sizeOf(first)}${more}`;
  }
  if (state === "same" && series.length > 1) return `All ${series.length} series are the same`;
  if (state === "same" && series.length) return `Same: ${first.label} ${sizeOf(first)}`;
  return numbers || "No series in common";
}

/** Return the verdict of a page in a sentence, and the numbers of its headline series below. */
function banner(lines, ...more) {
  const series = mainSeries(lines);
  const isNew = series.length > 0 && series.every(isFirstRun);
  const numbers = counted(series.map((line) => line.verdict));
  const state = KINDS.find((kind) => series.some((line) => line.verdict === kind)) ?? "unclear";
  const text = isNew ? "First run: the next one is compared with it" : sentenceOf(series, state, numbers);
  const tone = isNew ? "same" : colours[state] ?? "same";
  const hasNumbers = !isNew && text !== numbers && state !== "same";
  return make("div", { className: `banner ${tone}` }, make("p", { className: `sentence ${tone}` }, text), hasNumbers ? make("p", {}, numbers) : null, ...more);
}

const warning = (text) => make("p", { className: "alert bad" }, text);
const sentence = (name, text, state) => make("p", { className: `small${name.length + text.length > LONG ? " long" : ""}` }, `${name} `, coloured(text, "", state));
const verdictOf = (series) => isFirstRun(series) ? make("span", { className: "muted" }, "first run") : coloured(series.text, "", series.verdict);

const verdictOfRun = (run) => run.benchmark_verdict === "failed" ? "failed" : run.verdict;
const hasFailed = (run) => Object.keys(run.statuses ?? {}).some((status) => colours[status] === "failed");
const statuses = (run) => Object.entries(run.statuses ?? {}).map(([status, count]) => `${count} ${status}`).join(", ") || "-";

function ago(run) {
  const hours = (Date.now() - new Date(`${whenOf(run).replace(" ", "T")}Z`)) / 3600e3;
  if (hours < 1) return `${Math.max(0, Math.round(60 * hours))} min`;
  return hours < 48 ? `${Math.floor(hours)} h` : `${Math.floor(hours / 24)} days`;
}

const reportOf = (run) => `../runs/${run}/report.html`;
const historyOf = (series) => page("history", { suite: series.head.suite, cluster: series.cluster }, series.id);
const benchmarkLinks = (heads) => ["Benchmarks", ...benchmarksOf(heads).map((name) => link(name, page("benchmark", { name })))];

// The page of the suites.

const KEY = { same: "same", good: "better", noisy: "cannot tell", bad: "worse", failed: "failed", "": "first runs" };

function runColumns(head, runs) {
  const clusters = new Set(head.runs.map(([, cluster]) => cluster));
  const values = new Map(head.headline?.values ?? []);
  return [
    { name: "run", kind: "value", value: (run) => run.id, cell: (run) => make("span", { title: run.id }, whenOf(run.id)) },
    ...runs.some((run) => run.revision) ? [{ name: "revision", cell: (run) => run.revision }] : [],
    ...clusters.size > 1 ? [{ name: "cluster", cell: (run) => run.cluster }] : [],
    { name: "status", value: statuses, cell: (run) => make("span", { className: hasFailed(run) ? "failed" : "", title: (run.reasons ?? []).join("\n") }, statuses(run)) },
    { name: "verdict", value: verdictOfRun, cell: runVerdict },
    { name: "trust", value: (run) => run.trust, cell: (run) => coloured(run.trust, run.why) },
    { name: "duration", number: true, value: (run) => run.seconds, cell: (run) => run.duration },
    { name: head.headline?.label ?? "headline", number: true, value: (run) => values.get(run.id) ?? null, cell: (run) => head.headline ? shown(values.get(run.id), head.headline) : "-" },
    { name: "", value: (run) => `${run.id} ${run.cluster} ${run.trigger}`, cell: (run) => runLinks(head, run) },
  ];
}

function runVerdict(run) {
  const lines = (run.verdicts ?? []).map((pair) => pair.join(": "));
  const title = [...lines, run.benchmark_verdict_text].filter(Boolean).join("\n");
  const gate = run.gate === "failed" ? make("span", { className: "bad" }, ", gate failed") : "";
  return make("span", {}, coloured(verdictOfRun(run), title), gate);
}

function runLinks(head, run) {
  const previous = before(head, run.id, run.cluster);
  return make("span", { className: "controls" },
    run.report ? link("report", reportOf(run.id)) : null,
    previous ? link("compare", page("compare", { suite: head.suite, a: previous, b: run.id })) : null);
}

/** Return whether a suite that runs regularly has not run for far longer than usual. */
function isStale(head) {
  const moments = head.runs.slice(-11).map(([run]) => timeOf(run));
  const distances = moments.slice(1).map((moment, i) => moment - moments[i]).sort((a, b) => a - b);
  if (distances.length < 2) return false;
  const usual = distances[distances.length >> 1];
  return Date.now() - moments.at(-1) > Math.max(GAP * usual, DAY / 4);
}

/** Return the newest runs as squares, oldest first, which lead to their reports. */
function squaresOf(suite, runs) {
  const squares = runs.slice(0, SQUARES).reverse().map((run) => {
    const verdict = verdictOfRun(run);
    const name = `${whenOf(run.id)}: ${verdict ?? "first run"}`;
    const className = verdict === "same" ? "same" : colours[verdict] ?? "";
    return link("", run.report ? reportOf(run.id) : page("history", { suite }), { className, title: `${name}, ${statuses(run)}`, ariaLabel: name });
  });
  return make("div", { className: "squares" }, ...squares);
}

/** Return all runs of a suite as a table that is made when it is opened. */
function runsToOpen(head) {
  const count = head.runs.length;
  const element = make("details", {}, make("summary", {}, `${count} run${count > 1 ? "s" : ""}`));
  element.ontoggle = async () => {
    element.ontoggle = null;
    const runs = await runsOf(head, Infinity);
    element.append(table(runColumns(head, runs), runs, { most: 30 }));
    element.closest(".card").style.gridColumn = "1 / -1";
  };
  return element;
}

/** Return how long ago a suite ran, and what became of its run. */
function newestRun(run, stale) {
  if (!run) return ["no run"];
  const age = stale ? make("b", {}, `no run for ${ago(run.id)}, `) : `${ago(run.id)} ago, `;
  return [age, `${statuses(run)}, trust ${run.trust}${run.gate === "failed" ? ", gate failed" : ""}`];
}

/** Return the card of a suite: its verdict, the line of its worst series, and its last runs as squares. */
async function suiteCard(suite, wall) {
  const head = await load(`${suite}/suite.js`);
  const runs = await runsOf(head, SQUARES);
  const state = runs.length ? verdictOfRun(runs[0]) : undefined;
  const newestOfClusters = runs.filter((run, i) => runs.findIndex((other) => other.cluster === run.cluster) === i);
  const sentences = newestOfClusters.flatMap((run) => (run.verdicts ?? []).map(([name, text]) => sentence(name, text, run.verdict)));
  const stale = isStale(head);
  const card = make("section", { id: suite, className: `card ${colours[state] ?? ""}${stale ? " stale" : ""}` },
    make("h2", { className: suite.length > LONG_NAME ? "long" : "" }, link(suite, page("history", { suite })), coloured(state === "unclear" ? "cannot tell" : state ?? "first run", "", state)),
    make("p", { className: "muted small" }, ...newestRun(runs[0], stale)),
    ...sentences.slice(0, wall ? 1 : 3),
    ...headlineParts(head.headline, wall),
    squaresOf(suite, runs),
    ...head.damaged.map(warning),
    wall ? null : runsToOpen(head));
  return { head, card, rank: ["failed", "worse", "unclear", "better"].indexOf(state) + 1 || 9 };
}

/** Return the chart of the series that stands for a suite, and its newest value. */
function headlineParts(series, wall) {
  if (!series) return [];
  const points = series.values.slice(-ENOUGH_RUNS).map(([run, value]) => ({ run, value }));
  const newest = series.newest === null ? "no value" : shown(series.newest, series);
  return [
    wall ? filling(series, points) : chartOf(series, points, 340),
    make("p", { className: "small" }, make("b", {}, newest), ` ${series.label}${levelOf(series)}`),
  ];
}

/** The suites as cards, those with trouble first. `?wall` is for a screen that nobody touches. */
async function indexPage() {
  const index = await load("index.js");
  const wall = parameters.has("wall");
  if (wall) {
    document.body.dataset.wall = "yes";
    document.body.style.setProperty("--columns", Math.ceil(Math.sqrt(index.suites.length)));
    setTimeout(() => location.reload(), 60e3);
  }
  const unreadable = (error) => ({ card: warning(error.message), rank: 0 });
  const cards = await Promise.all(index.suites.map((suite) => suiteCard(suite, wall).catch(unreadable)));
  cards.sort((a, b) => a.rank - b.rank);
  const heads = cards.flatMap(({ head }) => head ?? []);
  const key = Object.entries(KEY).map(([kind, text]) => make("span", {}, make("i", { className: kind }), `${text}\u2003`));
  return [
    wall ? null : make("nav", {}, ...benchmarkLinks(heads), link("For a wall", "index.html?wall")),
    make("div", { className: "wall" }, ...cards.map(({ card }) => card)),
    make("p", { className: "squares muted small" }, ...key, `perfdag ${index.version}, times are UTC`),
  ];
}

// The pages of series: the history of a suite, and a benchmark.

/** The columns of a table of series. The last runs are drawn into a cell once their values are there. */
const seriesColumns = [
  { name: "series", kind: "text", value: (series) => series.name, cell: (series) => link(series.label, historyOf(series)) },
  { name: "last runs", kind: "runs", value: (series) => series.id, cell: () => "" },
  { name: "verdict", kind: "verdict", cell: verdictOf },
  { name: "level", number: true, value: (series) => series.levels.at(-1)?.[1], cell: (series) => shown(series.levels.at(-1)?.[1], series) },
  { name: "noise", number: true, cell: (series) => series.noise },
  { name: "newest", number: true, value: (series) => series.newest, cell: (series) => series.newest === null ? "absent" : shown(series.newest, series) },
];

/** Return one chart of one series with its changes, which a link can name, and with its alert as the caption. */
function seriesChart(series, points, caption) {
  const onCluster = pointsOnCluster(series, points);
  const values = onCluster.map(({ run, value }) => `${whenOf(run)}: ${shown(value, series)}`).join(", ");
  const chart = onCluster.length < FEWEST_RUNS ? make("p", { className: "muted" }, values || "no value in these months") : plot(series, onCluster);
  const heading = make("h3", {}, link(series.label, `#${series.id}`, { title: "link to this chart" }), " ", verdictOf(series));
  const tools = make("div", { className: "controls copy" },
    chart.draw ? copyButton("PNG", "image/png", () => pngOf(chart)) : null,
    copyButton("Markdown", "text/plain", () => markdownOf(series)));
  return make("section", { id: series.id, className: "chart" }, heading, tools, chart, caption, changesOf(series, !caption));
}

function changeText(change) {
  return `${dayOf(change.run)}: ${change.size} ${change.verdict}, ${change.step}. Changed: ${change.changed}.`;
}

function markdownOf(series) {
  const lines = series.changes.map((change) => `- ${changeText(change)}\n`);
  return `**${series.head.suite}: ${series.label}**, ${series.text}\n\n${lines.join("")}`;
}

/** Return the changes of a series, newest first, each with a link that compares the runs around it. */
function changesOf(series, open) {
  const count = series.changes.length;
  if (!count) return null;
  const items = series.changes.map((change) => {
    const around = { suite: series.head.suite, a: change.before, b: change.run };
    return make("li", {}, changeText(change), " ", link("compare", page("compare", around)));
  });
  const summary = `${count} change${count > 1 ? "s" : ""}, the newest ${series.changes.at(-1).step}`;
  return make("details", { open }, make("summary", {}, summary), make("ul", { className: "small" }, ...items.reverse()));
}

/** Return a small chart of a series, which leads to its history. */
function smallChart(series, points) {
  const state = series.verdict === "unclear" ? "cannot tell" : series.verdict;
  const newest = series.newest === null ? "absent" : shown(series.newest, series);
  return make("section", { id: series.id, className: `card ${colours[series.verdict] ?? ""}` },
    make("h2", {}, link(series.label, historyOf(series)), coloured(state, "", series.verdict)),
    make("p", { className: "muted small" }, [series.head.suite, series.cluster].filter(Boolean).join(", ")),
    chartOf(series, pointsOnCluster(series, points).slice(-ENOUGH_RUNS), 340),
    make("p", { className: "small" }, make("b", {}, newest), ` ${series.text}${levelOf(series)}`));
}

/** Return a table of series with their last runs, and the charts of the first ones that its filter keeps; the one that the address names stands first. */
async function tableWithCharts(columns, series, chart, most, monthsOf, kind = "") {
  const points = await pointsOf(series, monthsOf);
  const charts = make("div", { className: kind });
  const named = () => decodeURIComponent(location.hash.slice(1));
  let chosen = series;
  const draw = () => {
    const namedFirst = [...chosen].sort((a, b) => (b.id === named()) - (a.id === named()));
    charts.replaceChildren(...namedFirst.slice(0, most).map((line) => chart(line, points)));
  };
  addEventListener("hashchange", () => {
    draw();
    document.getElementById(named())?.scrollIntoView();
  });
  const filtered = (rows, visible) => {
    chosen = rows.map((row) => row.item);
    visible.forEach((row) => drawLastRuns(row, points));
    draw();
  };
  return [table(columns, series, { most: 30, filtered }), charts];
}

/** Draw the last runs of a series into its row, unless they are there already. */
function drawLastRuns(row, points) {
  const cell = row.querySelector(".runs");
  if (cell.firstElementChild) return;
  const line = chartOf(row.item, pointsOnCluster(row.item, points).slice(-SQUARES), 140, 30);
  if (line) cell.replaceChildren(line);
}

/** Return an alert: its kind in colour and what it is about, then its lines by their names. What to do begins with the report. */
function alertOf({ kind, run, text }, suite) {
  const [title, ...lines] = text.split("\n");
  const tone = { recovered: "good", acks: "noisy" }[kind] ?? "bad";
  const commandOrReport = (part) => part.endsWith("/report.html") ? link("report", reportOf(run)) : make("code", {}, part);
  const rows = lines.map((line) => {
    const [, name, value] = line.match(/^(\S*)\s+(.*)$/) ?? ["", "", line];
    const isToDo = name === "do" || name === "accept"; // commands with three spaces between them
    const parts = isToDo ? value.split("   ").flatMap((part) => [commandOrReport(part), " "]) : [value];
    return make("tr", {}, make("th", {}, name), make("td", { className: "text" }, ...parts));
  });
  const about = title.slice(kind.length + suite.length + 2).trim(); // without "KIND SUITE/"
  return make("div", { className: `alert ${tone}` }, make("p", {}, make("strong", { className: tone }, kind), ` ${about}`), make("table", { className: "small" }, ...rows));
}

/** Return how many runs the history shows: its chart begins before the change that it is about, if that is not too long ago. */
function runsToShow(head, series) {
  if (parameters.get("runs") === "all") return Infinity;
  const change = head.runs.findIndex(([run]) => run === series?.left);
  if (change < 0) return ENOUGH_RUNS;
  const reach = head.runs.length - change + ENOUGH_RUNS / 2;
  return reach > MOST_RUNS ? ENOUGH_RUNS : Math.max(ENOUGH_RUNS, reach);
}

/** Return the series of a cluster, what matters most first, and of equal ones what changed last. */
async function rankedSeries(head, cluster) {
  const changed = (series) => series.changes.at(-1)?.run ?? "";
  const series = (await seriesOf(head)).filter((line) => line.cluster === cluster);
  return series.sort((a, b) => b.headline - a.headline || rank(a) - rank(b) || changed(b).localeCompare(changed(a)));
}

/** Return what leads from a history to all its runs, to a comparison, a report, and the benchmarks. */
function historyLinks(head, runs, series, cluster, enough) {
  const newest = runs.at(-1)?.[0];
  const lastGood = series.find((line) => line.headline && line.verdict === "worse")?.changes.at(-1)?.before;
  const pair = { suite: head.suite, a: lastGood ?? before(head, newest, cluster) ?? runs[0]?.[0], b: newest };
  const comparison = lastGood ? "Compare with the last run before it got worse" : "Compare the newest two runs";
  return make("nav", { className: "head" },
    runs.length > enough ? link("All runs", page("history", { ...Object.fromEntries(parameters), runs: "all" })) : null,
    runs.length > 1 ? link(comparison, page("compare", pair)) : null,
    head.report ? link("Newest report", reportOf(head.report)) : null,
    ...benchmarkLinks([head]));
}

/** Return what a history is about: its runs, its series, its cluster. */
function historyText(runs, series, cluster) {
  const parts = [`${runs.length} ${runs.length === 1 ? "run" : "runs"}`];
  if (runs.length) parts[0] += ` from ${dayOf(runs[0][0])} to ${dayOf(runs.at(-1)[0])}`;
  parts.push(`${series.length} series`);
  if (cluster) parts.push(`cluster ${cluster}`);
  return parts.join(", ");
}

function acceptedLevels({ acks }) {
  if (!acks.length) return null;
  const items = acks.map((ack) => make("li", {}, `${ack.series} since ${dayOf(ack.run)}: ${ack.reason}${ack.until ? `, until ${ack.until}` : ""}`));
  return make("details", {}, make("summary", {}, `${acks.length} accepted level${acks.length > 1 ? "s" : ""}`), make("ul", {}, ...items));
}

async function historyPage() {
  const head = await headOf(parameters.get("suite"));
  const clusters = [...new Set(head.runs.map(([, name]) => name).reverse())];
  const cluster = parameters.get("cluster") ?? clusters[0];
  const runs = head.runs.filter(([, name]) => name === cluster);
  const all = await rankedSeries(head, cluster);
  const enough = runsToShow(head, all[0]);
  const alerts = head.alerts.filter((alert) => alert.cluster === cluster);
  const alertAbout = (series) => alerts.find(({ text }) => [series.label, series.name].some((name) => text.includes(`/${name} `)));
  const chart = (series, points) => {
    const alert = alertAbout(series);
    return seriesChart(series, points, alert ? alertOf(alert, head.suite) : null);
  };
  const [series, charts] = await tableWithCharts(seriesColumns, all, chart, 1, () => newestMonths(head, enough));
  const captioned = charts.querySelector(".alert strong")?.parentElement.textContent;
  const others = alerts.map((alert) => alertOf(alert, head.suite)).filter((alert) => alert.querySelector("p").textContent !== captioned);
  const choices = clusters.map((name) => [name, name || "this machine"]);
  const choose = (name) => { location.href = page("history", { suite: head.suite, cluster: name }); };
  return [
    make("p", { className: "muted head" }, historyText(runs, all, cluster)),
    historyLinks(head, runs, all, cluster, enough),
    clusters.length > 1 ? select("cluster", choices, cluster, choose) : null,
    banner(all),
    ...[...head.damaged, head.acks_wrong].filter(Boolean).map(warning),
    charts,
    others.length ? make("details", {}, make("summary", {}, `${others.length} more alert${others.length > 1 ? "s" : ""}`), ...others) : null,
    acceptedLevels(head),
    make("h2", {}, "Series"),
    series,
    make("p", { className: "muted small" }, "The chart is that of the series of which you chose the name. A bar in it is the spread of a run, a band where equal runs lie; a step may have begun where it is shaded. A dot opens its report."),
  ];
}

/** A benchmark: its headline series in all suites, those with trouble first. */
async function benchmarkPage() {
  const name = parameters.get("name");
  const { suites } = await load("index.js");
  const everyHead = await Promise.all(suites.map((suite) => load(`${suite}/suite.js`)));
  const heads = everyHead.filter((head) => benchmarksOf([head]).includes(name));
  if (!heads.length) throw new Error(`no benchmark ${name ?? ""}; there are ${benchmarksOf(everyHead).join(", ")}`);
  const ofSuites = await Promise.all(heads.map((head) => seriesOf(head, name)));
  const headline = mainSeries(ofSuites.flat()).sort((a, b) => rank(a) - rank(b));
  const columns = [{ name: "suite", cell: (series) => series.head.suite }, ...seriesColumns];
  const [series, charts] = await tableWithCharts(columns, headline, smallChart, 12, (head) => newestMonths(head, ENOUGH_RUNS), "wall");
  const linksOf = (head) => make("nav", {}, head.suite, link("history", page("history", { suite: head.suite })), head.report ? link("newest report", reportOf(head.report)) : null);
  return [banner(headline), ...heads.map(linksOf), charts, make("h2", {}, "Series"), series];
}

// The page of two runs. A verdict is a list here: kind, text, size, noise, the values before and after, and whether they are too noisy.

/** Return the verdict on two points: of the first runs of a series by their spreads, of others by the levels that they lie in. */
function verdictOnPair(series, a, b) {
  const [firstA, firstB] = [a, b].map(({ run }) => series.first.indexOf(run));
  if (firstA >= 0 && firstB >= 0) return series.early[firstA][firstB];
  const [levelA, levelB] = [a, b].map(({ run }) => series.levels.findLastIndex(([start]) => start <= run));
  if (levelA !== levelB) {
    const count = series.levels.length; // `between` has the newest ones alone, so its places count from the end
    return series.between.at(levelA - count)?.at(levelB - count) ?? ["unclear", `unclear: more than ${series.between.length} levels apart`];
  }
  const [, , low, high] = series.levels[levelB];
  const beyond = Object.entries({ B: b, A: a }).find(([, { value }]) => value < low || value > high);
  return beyond ? ["unclear", `unclear: ${beyond[0]} is beyond its level, and one run decides nothing`] : series.within[levelB];
}

/** Return the spread of the samples of a point as a share of their median, or of `least` where that is larger. */
const shareOf = ({ value, low, high, n }, least) => n > 1 ? (high - low) / Math.max(Math.abs(value), least) || 0 : 0;

/** Return the points none of whose headline values in a run can be used, with their least spread. */
function unusable(series, pointOf) {
  const shares = new Map();
  for (const line of series) {
    const point = line.headline && pointOf(line.id);
    if (point) shares.set(line.point, Math.min(shares.get(line.point) ?? Infinity, shareOf(point, line.least)));
  }
  return new Map([...shares].filter(([, share]) => share > 1));
}

/** Return a verdict on two values, which differ by `size`, as unclear where the samples of B or A spread too far, or the point was unusable in it. */
function trusted(verdict, line, shares, bad, size) {
  const [kind, , effect] = verdict;
  if (kind === "unclear" || kind === "failed") return verdict;
  const cannotTell = (reason, side, share) => {
    const spread = Math.round(100 * share).toLocaleString("en");
    const text = `cannot tell: ${effect === "-" ? size : effect}, but ${reason}the samples of ${side} spread by ${spread} %`;
    return ["unclear", text, ...verdict.slice(2, 6), true];
  };
  const tooWide = line.absolute ? undefined : ["B", "A"].find((side) => shares[side] > 1);
  if (tooWide) return cannotTell("", tooWide, shares[tooWide]);
  const without = ["B", "A"].find((side) => bad[side].has(line.point));
  if (without) return cannotTell(`the point was unusable in ${without}: `, without, bad[without].get(line.point));
  return verdict;
}

/** Return the series of two runs side by side with their verdicts: those of `verdicts` by series id, else those of their histories. */
function pairs(series, points, a, b, verdicts) {
  const idInA = verdicts?.paired ?? {};
  const paired = new Set(Object.values(idInA));
  const pointOf = (id, run) => points.get(id)?.find((point) => point.run === run.id);
  const bad = { B: unusable(series, (id) => pointOf(id, b)), A: unusable(series, (id) => pointOf(id, a)) };
  const byHistory = (line, left, right) => {
    if (!right && hasFailed(b)) return ["failed", "failed: no value in B, which has failed samples"];
    if (!right) return ["unclear", "unclear: only in A"];
    if (!left) return ["unclear", "unclear: only in B"];
    if (a.cluster !== b.cluster) return ["unclear", "unclear: two clusters have no common history"];
    const shares = { B: shareOf(right, line.least), A: shareOf(left, line.least) };
    return trusted(verdictOnPair(line, left, right), line, shares, bad, changeOf(line, left.value, right.value));
  };
  const lines = series.filter((line) => !paired.has(line.id) && points.get(line.id)?.length);
  return lines.map((line) => {
    const pointA = pointOf(idInA[line.id] ?? line.id, a);
    const pointB = pointOf(line.id, b);
    const [verdict, text, size, noise, valueA, valueB, noisy] = verdicts?.series[line.id] ?? byHistory(line, pointA, pointB);
    const left = compared(pointA, valueA);
    const right = compared(pointB, valueB);
    const change = left && right && left.value ? right.value / left.value - 1 : null;
    return { series: line, name: line.name, label: line.label, headline: line.headline, left, right, change, verdict, text, size: size === "-" ? undefined : size, noise, noisy };
  });
}

/** Return what a verdict compared of a point: its run, or the value of its level where that is another. */
const compared = (point, value) => point && value != null && value !== point.value ? { value } : point;

function pairColumns(rows) {
  const end = farthest(rows);
  const changeText = ({ size, change, series, left, right }) => size ?? (change === null ? "-" : changeOf(series, left.value, right.value));
  return [
    { name: "series", kind: "text", value: (row) => row.name, cell: (row) => link(row.label, historyOf(row.series)) },
    { name: "A", number: true, value: (row) => row.left?.value, cell: (row) => sideCell(row.left, row.series) },
    { name: "B", number: true, value: (row) => row.right?.value, cell: (row) => sideCell(row.right, row.series) },
    { name: "B against A", number: true, value: (row) => row.change, cell: (row) => make("span", {}, changeText(row)) },
    { name: "A ○ ● B", kind: "bars", cell: (row) => changeBar(row, end) },
    { name: "noise", number: true, cell: (row) => row.noise ?? "-" },
    { name: "verdict", cell: (row) => coloured(row.text, "", row.verdict) },
  ];
}

/** Return the value of one side with the spread of its samples; a level has none. */
function sideCell(side, series) {
  if (!side) return "-";
  const spread = side.n > 1 ? ` (${spreadOf(side, series)})` : side.n ? " (n 1)" : " (level)";
  return make("span", {}, shown(side.value, series), make("span", { className: "muted small" }, spread));
}

/** Return the end of the axis of the changes of a comparison, as a logarithm: from 10 % to the fourfold. */
function farthest(rows) {
  const sizes = rows.map(({ change }) => Math.abs(Math.log1p(Math.max(-0.75, change ?? 0))));
  return Math.min(Math.log(4), Math.max(Math.log(1.1), ...sizes));
}

/** Return a change on a logarithmic axis, in front of twice the noise of the series. */
function changeBar({ change, noise, verdict }, end) {
  if (change === null || change === undefined) return "";
  const middle = 110;
  const x = (share) => middle + 96 * Math.max(-1, Math.min(1, Math.log1p(Math.max(-0.99, share)) / end));
  const usual = (noise ?? "").endsWith("%") ? 2 * parseFloat(noise) / 100 : 0;
  const colour = colours[verdict] ?? "ink";
  const tone = `var(--${colour === "failed" ? "ink" : colour})`;
  return shape("svg", { viewBox: "0 0 220 20", width: 220, height: 20, "aria-hidden": "true" },
    shape("rect", { x: x(-usual), y: 2, width: x(usual) - x(-usual), height: 16, fill: "var(--grid)" }),
    shape("line", { x1: middle, y1: 0, x2: middle, y2: 20, stroke: "var(--muted)" }),
    shape("line", { x1: middle, y1: 10, x2: x(change), y2: 10, stroke: tone, "stroke-width": 2 }),
    shape("circle", { cx: middle, cy: 10, r: 4, fill: "var(--paper)", stroke: "var(--muted)", "stroke-width": 2 }),
    shape("circle", { cx: x(change), cy: 10, r: 5, fill: tone }));
}

/** Return the two runs of the address, by default the newest one and the one before it on its cluster. */
function runsToCompare(head) {
  const ids = head.runs.map(([run]) => run);
  const given = (name) => ids.find((run) => run === parameters.get(name));
  const b = given("b") ?? ids.at(-1);
  const a = given("a") ?? before(head, b, clusterIn(head, b)) ?? ids[0];
  return [a, b];
}

const clusterIn = (head, run) => head.runs.find(([id]) => id === run)[1];

/** Return the facts that differ between two runs, and those that only one of them has. */
function differences(a, b) {
  const facts = [...new Set([...Object.keys(a), ...Object.keys(b)])].filter((key) => !["not known", "revision folder"].includes(key));
  facts.sort((x, y) => (y === "revision") - (x === "revision") || (x < y ? -1 : 1));
  const inBoth = (key) => key in a && key in b;
  return { differing: facts.filter((key) => inBoth(key) && a[key] !== b[key]), unpaired: facts.filter((key) => !inBoth(key)) };
}

function environmentDetails(a, b) {
  const { differing, unpaired } = differences(a, b);
  const count = differing.length;
  const summary = `Environment: ${count || "no"} recorded difference${count === 1 ? "" : "s"}`;
  return make("details", { open: count > 0 && count < 8 }, make("summary", {}, summary),
    make("ul", { className: "small" }, ...differing.map((key) => make("li", {}, `${key}: ${a[key]} -> ${b[key]}`)),
      unpaired.length ? make("li", {}, `known of one run only: ${unpaired.join(", ")}`) : null));
}

/** Return the series that were not compared, by the reason. */
function missingDetails([reason, [count, lines]]) {
  const more = count > lines.length ? make("li", {}, `and ${count - lines.length} more`) : null;
  const items = lines.map((line) => make("li", {}, line));
  return make("details", {}, make("summary", {}, `${reason}: ${count}`), make("ul", { className: "small" }, ...items, more));
}

/** Return a function that gives the moment of a run: with seconds where runs begin within a minute. */
function momentsOf(head) {
  const minutes = new Set(head.runs.map(([run]) => whenOf(run)));
  return (run) => minutes.size < head.runs.length ? `${whenOf(run)}:${run.slice(13, 15)}` : whenOf(run);
}

/** Return the menus of a comparison, and the links to what belongs to its runs. */
function comparisonControls(index, head, a, b, momentOf) {
  const { suite } = head;
  const go = (values) => { location.href = page("compare", values); };
  const choices = [...head.runs].reverse().map(([run, cluster, , revision, count]) => {
    const again = count ? `, measured again ${count === 1 ? "once" : `${count} times`}` : "";
    return [run, `${momentOf(run)} ${cluster} ${revision}`.trim() + again];
  });
  return make("div", { className: "controls" },
    index.suites.length > 1 ? select("suite", index.suites.map((name) => [name, name]), suite, (name) => go({ suite: name })) : null,
    select("A", choices, a.id, (run) => go({ suite, a: run, b: b.id })),
    select("B", choices, b.id, (run) => go({ suite, a: a.id, b: run })),
    link("swap", page("compare", { suite, a: b.id, b: a.id })),
    link("history", page("history", { suite })),
    a.report ? link("report of A", reportOf(a.id)) : null,
    b.report ? link("report of B", reportOf(b.id)) : null);
}

/** Return the series that A or B can have, those of the cluster of A first. */
async function seriesOfRuns(head, runs) {
  const all = await seriesOf(head);
  const ofRuns = runs.flatMap((run) => all.filter((line) => line.cluster === clusterIn(head, run)));
  return [...new Map(ofRuns.map((line) => [line.id, line])).values()];
}

async function comparePage() {
  const index = await load("index.js");
  const head = await headOf(parameters.get("suite") ?? index.suites[0]);
  if (head.runs.length < 2) throw new Error(`suite ${head.suite} has fewer than two runs`);
  const ids = runsToCompare(head);
  const months = [...new Set(ids.map(monthOf))];
  const series = await seriesOfRuns(head, ids);
  const [files, [verdicts], points] = await Promise.all([
    loadAll(head, ...months.map((month) => `runs/${month}.js`)),
    loadAll(head, `compare/${ids[1]}/${ids[0]}.js`),
    pointsOf(series, () => months),
  ]);
  const runs = files.flatMap((file) => file.runs.map((run) => ({ ...run, facts: file.environments[run.environment] })));
  const [a, b] = ids.map((id) => runs.find((run) => run.id === id));
  const rows = pairs(series, points, a, b, verdicts);
  rows.sort((x, y) => y.headline - x.headline || rank(x) - rank(y) || Math.abs(y.change ?? 0) - Math.abs(x.change ?? 0));
  const momentOf = momentsOf(head);
  document.querySelector("main").dataset.title = `${head.suite}: ${momentOf(a.id)} against ${momentOf(b.id)}`;
  const command = make("code", {}, `perfdag compare ${a.id} ${b.id} ${index.store}`);
  const note = make("p", { className: "small" }, "by the history of each series; ", command, " pairs the points of a changed parameter too");
  const end = farthest(rows);
  return [
    comparisonControls(index, head, a, b, momentOf),
    banner(rows, verdicts ? null : note),
    environmentDetails(a.facts, b.facts),
    ...Object.entries(verdicts?.parameters ?? {}).map(([key, [from, to]]) => make("p", {}, `${key}: ${from} -> ${to}`)),
    ...Object.entries(verdicts?.missing ?? {}).map(missingDetails),
    table(pairColumns(rows), rows, { most: 50 }),
    make("p", { className: "muted small" }, `Grey behind a change is twice the noise of its series. The axis is logarithmic and ends at ${percent(Math.expm1(end))} and ${percent(Math.expm1(-end))}.`),
  ];
}

const pagesByName = {
  index: ["Suites", indexPage], history: [`${parameters.get("suite") ?? "?"}: history`, historyPage],
  benchmark: [`${parameters.get("name") ?? "?"}: benchmark`, benchmarkPage], compare: ["Two runs compared", comparePage],
};
show(...pagesByName[document.body.dataset.page]);
