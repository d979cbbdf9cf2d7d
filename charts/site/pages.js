// The pages: the suites, the history of a suite, a benchmark over all suites, and two runs compared.
"use strict";

const ENOUGH_RUNS = 60, MOST_RUNS = 400, SQUARES = 30;
/** The kinds of verdicts, the one that matters most first. */
const KINDS = ["failed", "worse", "better", "unclear", "same"];

const newestMonths = (head, enough) => [...new Set(head.runs.slice(-enough).map(([run]) => monthOf(run)))];

/** Return the values of series by id, each a list of points, oldest first, in the months that `monthsOf` gives of a suite. */
async function pointsOf(series, monthsOf) {
  const points = new Map();
  for (const head of new Set(series.map((line) => line.head))) {
    const clusterOf = new Map(head.runs.map(([run, cluster]) => [run, cluster]));
    const folders = [...new Set(series.filter((line) => line.head === head).map((line) => line.folder))];
    for (const block of await loadAll(head, ...folders.flatMap((folder) => monthsOf(head).map((month) => `values/${folder}/${month}.js`)))) {
      for (const [id, [value, low, high, n]] of Object.entries(block.series)) {
        const own = block.runs.map((run, i) => ({ run, cluster: clusterOf.get(run), value: value[i], low: low[i], high: high[i], n: n[i] }));
        points.set(id, [...points.get(id) ?? [], ...own.filter((point) => point.value !== null)]);
      }
    }
  }
  for (const list of points.values()) list.sort((a, b) => a.run < b.run ? -1 : 1);
  return points;
}

/** Return the series of a suite, of all benchmarks or of one, each with its suite's head and the folder of its benchmark. */
async function seriesOf(head, benchmark) {
  const files = await loadAll(head, benchmark ? `series/${benchmark}.js` : "series/");
  const failed = { verdict: "failed", headline: true, noise: "-", newest: null, levels: [], changes: [], left: null, drift: null }; // a point without a value
  return files.flatMap(({ folder, series }) => series.map((line) => ({ ...failed, ...line, head, folder })));
}

const benchmarksOf = (heads) => [...new Set(heads.flatMap((head) => Object.keys(head.files)).filter((path) => path.startsWith("series/")).map((path) => path.slice("series/".length, -".js".length)))].sort();
const benchmarkLinks = (heads) => ["Benchmarks", ...benchmarksOf(heads).map((name) => link(name, page("benchmark", { name })))];
const rank = (line) => KINDS.indexOf(line.verdict);
/** Return the level of a series that changed, which stands beside its newest value. */
const levelOf = (line) => ["worse", "better"].includes(line.verdict) && line.changes.length ? `, level ${shown(line.levels.at(-1)[1], line)}` : "";
const counted = (words) => ["failed", "worse", "better", "same", "unclear"].map((word) => [words.filter((other) => other === word).length, word === "unclear" ? "cannot be judged" : word]).filter(([count]) => count).map((pair) => pair.join(" ")).join(", ");

/** Return the run before one, of the same cluster. */
function before(head, run, cluster) {
  const earlier = head.runs.filter(([id, name, trigger]) => id < run && name === cluster && trigger !== "part");
  return earlier.at(-1)?.[0];
}

const reportOf = (run) => `../runs/${run}/report.html`;

const verdictOfRun = (run) => run.benchmark_verdict === "failed" ? "failed" : run.verdict;
const lost = (run) => Object.keys(run.statuses ?? {}).some((status) => colours[status] === "failed");
const statuses = (run) => Object.entries(run.statuses ?? {}).map(([status, count]) => `${count} ${status}`).join(", ") || "-";

function runColumns(head, runs) {
  const values = new Map(head.headline?.values ?? []);
  const columns = [
    { name: "run", kind: "value", value: (run) => run.id, cell: (run) => make("span", { title: run.id }, whenOf(run.id)) },
    { name: "status", value: statuses, cell: (run) => make("span", { className: lost(run) ? "failed" : "", title: (run.reasons ?? []).join("\n") }, statuses(run)) },
    { name: "verdict", value: verdictOfRun, cell: (run) => make("span", {},
      word(verdictOfRun(run), [...(run.verdicts ?? []).map((pair) => pair.join(": ")), run.benchmark_verdict_text].filter(Boolean).join("\n")), run.gate === "failed" ? make("span", { className: "bad" }, ", gate failed") : "") },
    { name: "trust", value: (run) => run.trust, cell: (run) => word(run.trust, run.why) },
    { name: "duration", number: true, value: (run) => run.seconds, cell: (run) => run.duration },
    { name: head.headline?.label ?? "headline", number: true, value: (run) => values.get(run.id) ?? null, cell: (run) => head.headline ? shown(values.get(run.id), head.headline) : "-" },
    { name: "", value: (run) => `${run.id} ${run.cluster} ${run.trigger}`, cell: (run) => {
      const previous = before(head, run.id, run.cluster);
      return make("span", { className: "controls" }, run.report ? link("report", reportOf(run.id)) : null,
        previous ? link("compare", page("compare", { suite: head.suite, a: previous, b: run.id })) : null);
    } },
  ];
  if (new Set(head.runs.map(([, cluster]) => cluster)).size > 1) columns.splice(1, 0, { name: "cluster", cell: (run) => run.cluster });
  if (runs.some((run) => run.revision)) columns.splice(1, 0, { name: "revision", cell: (run) => run.revision });
  return columns;
}

/** Return the runs of some months of a suite, newest first. */
async function runsOf(head, enough) {
  const files = await loadAll(head, ...newestMonths(head, enough).map((month) => `runs/${month}.js`));
  return files.flatMap((file) => file.runs).sort((a, b) => a.id < b.id ? 1 : -1);
}

function ago(run) {
  const hours = (Date.now() - new Date(`${whenOf(run).replace(" ", "T")}Z`)) / 3600e3;
  return hours < 1 ? `${Math.max(0, Math.round(60 * hours))} min` : hours < 48 ? `${Math.floor(hours)} h` : `${Math.floor(hours / 24)} days`;
}

const KEY = { same: "same", good: "better", noisy: "cannot tell", bad: "worse", failed: "failed", "": "first runs" };

/** Return whether a suite that runs regularly has not run for far longer than usual. */
function stale(head) {
  const moments = head.runs.slice(-11).map(([run]) => timeOf(run)), distances = moments.slice(1).map((moment, i) => moment - moments[i]).sort((a, b) => a - b);
  return distances.length > 1 && Date.now() - moments.at(-1) > Math.max(GAP * distances[distances.length >> 1], DAY / 4);
}

/** Return the card of a suite: its verdict, the line of its worst series, and its last runs as squares. */
async function suiteCard(suite) {
  const head = await load(`${suite}/suite.js`), runs = await runsOf(head, SQUARES), newest = runs[0], state = newest && verdictOfRun(newest);
  const ends = runs.filter((run, i) => runs.findIndex((other) => other.cluster === run.cluster) === i); // the newest run of each cluster
  const said = ends.flatMap((run) => (run.verdicts ?? []).map(([name, text]) => [name, text, run.verdict]));
  const series = head.headline, points = series?.values.slice(-ENOUGH_RUNS).map(([run, value]) => ({ run, value }));
  const old = stale(head), wall = parameters.has("wall"), squares = runs.slice(0, SQUARES).reverse().map((run) => link("", run.report ? reportOf(run.id) : page("history", { suite }),
    { className: verdictOfRun(run) === "same" ? "same" : colours[verdictOfRun(run)] ?? "", title: `${whenOf(run.id)}: ${verdictOfRun(run) ?? "first run"}, ${statuses(run)}`, ariaLabel: `${whenOf(run.id)}: ${verdictOfRun(run) ?? "first run"}` }));
  const list = make("details", {}, make("summary", {}, `${head.runs.length} run${head.runs.length > 1 ? "s" : ""}`));
  list.ontoggle = async () => {
    list.ontoggle = null;
    const all = await runsOf(head, Infinity);
    list.append(table(runColumns(head, all), all, { most: 30 }));
    if (!parameters.has("wall")) card.style.gridColumn = "1 / -1";
  };
  const card = make("section", { id: suite, className: `card ${colours[state] ?? ""}${old ? " stale" : ""}` },
    make("h2", {}, link(suite, page("history", { suite })), word(state === "unclear" ? "cannot tell" : state ?? "first run", "", state)),
    make("p", { className: "muted small" }, !newest ? "no run" : old ? make("b", {}, `no run for ${ago(newest.id)}, `) : `${ago(newest.id)} ago, `, newest ? `${statuses(newest)}, trust ${newest.trust}${newest.gate === "failed" ? ", gate failed" : ""}` : null),
    ...said.slice(0, wall ? 1 : 3).map((parts) => sentence(...parts)), !series ? null : wall ? filling(series, points) : chartOf(series, points, 340),
    series ? make("p", { className: "small" }, make("b", {}, series.newest === null ? "no value" : shown(series.newest, series)), ` ${series.label}${levelOf(series)}`) : null,
    make("div", { className: "squares" }, ...squares), ...head.damaged.map(warning), wall ? null : list);
  return { head, card, rank: ["failed", "worse", "unclear", "better"].indexOf(state) + 1 || 9 };
}

/** The suites as cards, those with trouble first. `?wall` is for a screen that nobody touches. */
async function indexPage() {
  const index = await load("index.js"), wall = parameters.has("wall");
  if (wall) { document.body.dataset.wall = "yes"; document.body.style.setProperty("--columns", Math.ceil(Math.sqrt(index.suites.length))); setTimeout(() => location.reload(), 60e3); }
  const cards = await Promise.all(index.suites.map((suite) => suiteCard(suite).catch((error) => ({ card: warning(error.message), rank: 0 }))));
  cards.sort((a, b) => a.rank - b.rank);
  const heads = cards.flatMap(({ head }) => head ?? []);
  return [wall ? null : make("nav", {}, ...benchmarkLinks(heads), link("For a wall", "index.html?wall")), make("div", { className: "wall" }, ...cards.map(({ card }) => card)),
    make("p", { className: "squares muted small" }, ...Object.entries(KEY).map(([kind, text]) => make("span", {}, make("i", { className: kind }), `${text}\u2003`)), `perfdag ${index.version}, times are UTC`)];
}

const mainSeries = (series) => series.some((line) => line.headline) ? series.filter((line) => line.headline) : series;
const sizeOf = (line) => line.text.replace(line.verdict, "").replace(/^[: ]+/, ""), capital = (text) => text[0].toUpperCase() + text.slice(1);
/** Return the sentence about some series: what matters most of the headline ones, by its name; or their numbers. */
function sentenceOf(own, state, numbers) {
  const first = own.find((line) => line.verdict === state), others = own.filter((line) => line.verdict === state).length - 1;
  if (["failed", "worse", "better"].includes(state)) return `${capital(state)}: ${first.label} ${sizeOf(first)}${others ? `, and ${others} more` : ""}`;
  if (state === "same" && own.length) return own.length > 1 ? `All ${own.length} series are the same` : `Same: ${first.label} ${sizeOf(first)}`;
  return numbers || "No series in common";
}
/** Return the verdict of a page in a sentence, and the numbers of its headline series below. */
function banner(lines, ...more) {
  const own = mainSeries(lines), numbers = counted(own.map((line) => line.verdict)), state = KINDS.find((name) => own.some((line) => line.verdict === name)) ?? "unclear";
  const fresh = own.length && own.every((line) => line.text === "unclear: no earlier run"), kind = fresh ? "same" : colours[state] ?? "same";
  const text = fresh ? "First run: the next one is compared with it" : sentenceOf(own, state, numbers);
  return make("div", { className: `banner ${kind}` }, make("p", { className: `sentence ${kind}` }, text), fresh || text === numbers || state === "same" ? null : make("p", {}, numbers), ...more);
}
const warning = (text) => make("p", { className: "alert bad" }, text);
const sentence = (name, text, state) => make("p", { className: "small" }, `${name} `, word(text, "", state));
const historyOf = (series) => page("history", { suite: series.head.suite, cluster: series.cluster }, series.id);

const verdictOf = (series) => series.text === "unclear: no earlier run" ? make("span", { className: "muted" }, "first run") : word(series.text, "", series.verdict);

/** The columns of a table of series. The last runs are drawn into a cell once their values are there. */
const seriesColumns = [
  { name: "series", kind: "text", value: (series) => series.name, cell: (series) => link(series.label, historyOf(series)) },
  { name: "last runs", kind: "runs", value: (series) => series.id, cell: () => "" },
  { name: "verdict", kind: "verdict", cell: verdictOf },
  { name: "level", number: true, value: (series) => series.levels.at(-1)?.[1], cell: (series) => shown(series.levels.at(-1)?.[1], series) },
  { name: "noise", number: true, cell: (series) => series.noise },
  { name: "newest", number: true, value: (series) => series.newest, cell: (series) => series.newest === null ? "absent" : shown(series.newest, series) },
];

function changeText(change) {
  return `${dayOf(change.run)}: ${change.size} ${change.verdict}, ${change.step}. Changed: ${change.changed}.`;
}

const ownPoints = (series, points) => (points.get(series.id) ?? []).filter(({ cluster }) => cluster === series.cluster);

/** Return one chart of one series with its changes, which a link can name, and with its alert as the caption. */
function seriesChart(series, points, caption) {
  const own = ownPoints(series, points), texts = series.changes.map(changeText);
  const markdown = () => `**${series.head.suite}: ${series.label}**, ${series.text}\n\n${texts.map((text) => `- ${text}\n`).join("")}`;
  const told = own.map(({ run, value }) => `${whenOf(run)}: ${shown(value, series)}`).join(", ") || "no value in these months";
  const chart = own.length < FEWEST_RUNS ? make("p", { className: "muted" }, told) : plot(series, own);
  const heading = make("h3", {}, link(series.label, `#${series.id}`, { title: "link to this chart" }), " ", verdictOf(series));
  const tools = make("div", { className: "controls copy" }, chart.draw ? copyButton("PNG", "image/png", () => pngOf(chart)) : null, copyButton("Markdown", "text/plain", markdown));
  const changes = series.changes.map((change, i) => make("li", {}, texts[i], " ", link("compare", page("compare", { suite: series.head.suite, a: change.before, b: change.run })))).reverse();
  return make("section", { id: series.id, className: "chart" }, heading, tools, chart, caption,
    !changes.length ? null : make("details", { open: !caption }, make("summary", {}, `${changes.length} change${changes.length > 1 ? "s" : ""}, the newest ${series.changes.at(-1).step}`), make("ul", { className: "small" }, ...changes)));
}

/** Return a small chart of a series, which leads to its history. */
function smallChart(series, points) {
  return make("section", { id: series.id, className: `card ${colours[series.verdict] ?? ""}` },
    make("h2", {}, link(series.label, historyOf(series)), word(series.verdict === "unclear" ? "cannot tell" : series.verdict, "", series.verdict)),
    make("p", { className: "muted small" }, [series.head.suite, series.cluster].filter(Boolean).join(", ")),
    chartOf(series, ownPoints(series, points).slice(-ENOUGH_RUNS), 340),
    make("p", { className: "small" }, make("b", {}, series.newest === null ? "absent" : shown(series.newest, series)), ` ${series.text}${levelOf(series)}`));
}

/** Return a table of series with their last runs, and the charts of the first ones that its filter keeps; the one that the address names stands first. */
async function tableWithCharts(columns, all, chart, most, monthsOf, kind = "") {
  const charts = make("div", { className: kind }), named = () => decodeURIComponent(location.hash.slice(1));
  const points = await pointsOf(all, monthsOf), byId = new Map(all.map((series) => [series.id, series]));
  let chosen = all;
  const draw = () => charts.replaceChildren(...[...chosen].sort((a, b) => (b.id === named()) - (a.id === named())).slice(0, most).map((series) => chart(series, points)));
  addEventListener("hashchange", () => { draw(); document.getElementById(named())?.scrollIntoView(); });
  const filtered = (rows, visible) => {
    chosen = rows.map((row) => row.item);
    for (const cell of visible.map((row) => row.querySelector(".runs"))) {
      const series = byId.get(cell.dataset.value), line = cell.firstChild?.nodeType === 1 ? null : chartOf(series, ownPoints(series, points).slice(-SQUARES), 140, 30);
      if (line) cell.replaceChildren(line);
    }
    draw();
  };
  return [table(columns, all, { most: 30, filtered }), charts];
}

/** Return an alert: its word in colour and what it is about, then its lines by their names. What to do begins with the report. */
function alertOf({ kind, run, text }, suite) {
  const [title, ...lines] = text.split("\n"), tone = { recovered: "good", acks: "noisy" }[kind] ?? "bad";
  const value = (name, words) => name !== "do" && name !== "accept" ? [words] : words.split("   ")
    .flatMap((part) => [part.endsWith("/report.html") ? link("report", reportOf(run)) : make("code", {}, part), " "]);
  const rows = lines.map((line) => line.match(/^(\S*)\s+(.*)$/) ?? ["", "", line]).map(([, name, words]) => make("tr", {}, make("th", {}, name), make("td", { className: "text" }, ...value(name, words))));
  return make("div", { className: `alert ${tone}` }, make("p", {}, make("strong", { className: tone }, kind), ` ${title.slice(kind.length + suite.length + 2).trim()}`), make("table", { className: "small" }, ...rows));
}

async function historyPage() {
  const head = await headOf(parameters.get("suite"));
  const clusters = [...new Set(head.runs.map(([, cluster]) => cluster).reverse())];
  const cluster = parameters.get("cluster") ?? clusters[0];
  const runs = head.runs.filter(([, name]) => name === cluster), changed = (series) => series.changes.at(-1)?.run ?? "";
  const all = (await seriesOf(head)).filter((series) => series.cluster === cluster)
    .sort((a, b) => b.headline - a.headline || rank(a) - rank(b) || changed(b).localeCompare(changed(a)));
  // The chart begins before the change that it is about, if that is not too long ago.
  const left = head.runs.findIndex(([run]) => run === all[0]?.left), reach = left < 0 ? 0 : head.runs.length - left + ENOUGH_RUNS / 2;
  const enough = parameters.get("runs") === "all" ? Infinity : reach > MOST_RUNS ? ENOUGH_RUNS : Math.max(ENOUGH_RUNS, reach);
  const alerts = head.alerts.filter((alert) => alert.cluster === cluster), aboutOf = (series) => alerts.find(({ text }) => [series.label, series.name].some((name) => text.includes(`/${name} `)));
  const chart = (series, points) => { const alert = aboutOf(series); return seriesChart(series, points, alert ? alertOf(alert, head.suite) : null); };
  const [series, charts] = await tableWithCharts(seriesColumns, all, chart, 1, () => newestMonths(head, enough));
  const captioned = charts.querySelector(".alert strong")?.parentElement.textContent, others = alerts.map((alert) => alertOf(alert, head.suite)).filter((alert) => alert.querySelector("p").textContent !== captioned);
  const newest = runs.at(-1)?.[0], fall = all.find((line) => line.headline && line.verdict === "worse")?.changes.at(-1)?.before;
  return [
    make("p", { className: "muted head" }, `${runs.length} ${runs.length === 1 ? "run" : "runs"}${newest ? ` from ${dayOf(runs[0][0])} to ${dayOf(newest)}` : ""}, ${all.length} series${cluster ? `, cluster ${cluster}` : ""}`),
    make("nav", { className: "head" }, runs.length > enough ? link("All runs", page("history", { ...Object.fromEntries(parameters), runs: "all" })) : null, runs.length > 1 ? link(fall ? "Compare with the last run before it got worse" : "Compare the newest two runs", page("compare", { suite: head.suite, a: fall ?? before(head, newest, cluster) ?? runs[0][0], b: newest })) : null,
      head.report ? link("Newest report", reportOf(head.report)) : null, ...benchmarkLinks([head])),
    clusters.length > 1 ? select("cluster", clusters.map((name) => [name, name || "this machine"]), cluster, (name) => { location.href = page("history", { suite: head.suite, cluster: name }); }) : null,
    banner(all), ...[...head.damaged, head.acks_wrong].filter(Boolean).map(warning), charts,
    others.length ? make("details", {}, make("summary", {}, `${others.length} more alert${others.length > 1 ? "s" : ""}`), ...others) : null,
    head.acks.length ? make("details", {}, make("summary", {}, `${head.acks.length} accepted level${head.acks.length > 1 ? "s" : ""}`), make("ul", {}, ...head.acks.map((ack) => make("li", {}, `${ack.series} since ${dayOf(ack.run)}: ${ack.reason}${ack.until ? `, until ${ack.until}` : ""}`)))) : null,
    make("h2", {}, "Series"), series,
    make("p", { className: "muted small" }, "The chart is that of the series of which you chose the name. A bar in it is the spread of a run, a band where equal runs lie; a step may have begun where it is shaded. A dot opens its report."),
  ];
}

/** A benchmark: its headline series in all suites, those with trouble first. */
async function benchmarkPage() {
  const name = parameters.get("name"), { suites } = await load("index.js"), every = await Promise.all(suites.map((suite) => load(`${suite}/suite.js`)));
  const heads = every.filter((head) => benchmarksOf([head]).includes(name));
  if (!heads.length) throw new Error(`no benchmark ${name ?? ""}; there are ${benchmarksOf(every).join(", ")}`);
  const own = mainSeries((await Promise.all(heads.map((head) => seriesOf(head, name)))).flat()).sort((a, b) => rank(a) - rank(b));
  const columns = [{ name: "suite", cell: (series) => series.head.suite }, ...seriesColumns];
  const [series, charts] = await tableWithCharts(columns, own, smallChart, 12, (head) => newestMonths(head, ENOUGH_RUNS), "wall");
  return [
    banner(own), ...heads.map((head) => make("nav", {}, head.suite, link("history", page("history", { suite: head.suite })), head.report ? link("newest report", reportOf(head.report)) : null)),
    charts, make("h2", {}, "Series"), series,
  ];
}

/** Return the verdict on two points: of the first runs of a series by their spreads, of others by the levels that they lie in. */
function verdictOnPair(series, a, b) {
  const [i, j] = [a, b].map(({ run }) => series.first.indexOf(run)), count = series.levels.length;
  if (i >= 0 && j >= 0) return series.early[i][j];
  const [from, to] = [a, b].map(({ run }) => series.levels.findLastIndex(([start]) => start <= run));
  if (from !== to) return series.between.at(from - count)?.at(to - count) ?? ["unclear", `unclear: more than ${series.between.length} levels apart`];
  const [, , low, high] = series.levels[to], [beyond] = [["B", b], ["A", a]].find(([, { value }]) => value < low || value > high) ?? [];
  return beyond ? ["unclear", `unclear: ${beyond} is beyond its level, and one run decides nothing`] : series.within[to];
}

/** Return the spread of the samples of a point as a share of their median, or of `least` where that is larger. */
const shareOf = ({ value, low, high, n }, least) => n > 1 ? (high - low) / Math.max(Math.abs(value), least) || 0 : 0;

/** Return the points none of whose headline values in a run can be used, with their least spread. */
function unusable(series, valueOf) {
  const shares = new Map();
  for (const line of series) {
    const point = line.headline && valueOf(line.id);
    if (point) shares.set(line.point, Math.min(shares.get(line.point) ?? Infinity, shareOf(point, line.least)));
  }
  return new Map([...shares].filter(([, share]) => share > 1));
}

/** Return a verdict on two values, which differ by `size`, as unclear where the samples of B or A spread too far, or the point was unusable in it. */
function trusted(found, line, shares, bad, size) {
  if (found[0] === "unclear" || found[0] === "failed") return found;
  const because = (what, side, share) => ["unclear", `cannot tell: ${found[2] === "-" ? size : found[2]}, but ${what}the samples of ${side} spread by ${Math.round(100 * share).toLocaleString("en")} %`, ...found.slice(2, 6), true];
  const wide = line.absolute ? [] : ["B", "A"].filter((side) => shares[side] > 1).map((side) => because("", side, shares[side]));
  const points = ["B", "A"].filter((side) => bad[side].has(line.point)).map((side) => because(`the point was unusable in ${side}: `, side, bad[side].get(line.point)));
  return [...wide, ...points, found][0];
}

/** Return the series of two runs side by side with their verdicts: those of `verdicts` by series id, else those of their histories. */
function pairs(series, points, a, b, verdicts) {
  const inA = verdicts?.paired ?? {}, paired = new Set(Object.values(inA));
  const at = (id, run) => points.get(id)?.find((point) => point.run === run.id);
  const bad = { B: unusable(series, (id) => at(id, b)), A: unusable(series, (id) => at(id, a)) };
  const history = (line, left, right) => !right ? lost(b) ? ["failed", "failed: no value in B, which has failed samples"] : ["unclear", "unclear: only in A"]
    : !left ? ["unclear", "unclear: only in B"] : a.cluster !== b.cluster ? ["unclear", "unclear: two clusters have no common history"]
      : trusted(verdictOnPair(line, left, right), line, { B: shareOf(right, line.least), A: shareOf(left, line.least) }, bad, changeOf(line, left.value, right.value));
  const compared = (point, value) => point && value != null && value !== point.value ? { value } : point; // a level and not the run
  return series.filter((line) => !paired.has(line.id) && points.get(line.id)?.length).map((line) => {
    const [of, to] = [at(inA[line.id] ?? line.id, a), at(line.id, b)];
    const [state, text, size, noise, before, after, noisy] = verdicts?.series[line.id] ?? history(line, of, to);
    const [left, right] = [compared(of, before), compared(to, after)], change = left && right && left.value ? right.value / left.value - 1 : null;
    return { series: line, name: line.name, label: line.label, headline: line.headline, left, right, change, verdict: state, text, size: size === "-" ? undefined : size, noise, noisy };
  });
}

function pairColumns(rows) {
  const side = (name, key) => ({ name, number: true, value: (row) => row[key]?.value, cell: (row) => row[key]
    ? make("span", {}, shown(row[key].value, row.series), make("span", { className: "muted small" }, row[key].n > 1 ? ` (${digits(row[key].low / row.series.factor)} to ${digits(row[key].high / row.series.factor)}, n ${row[key].n})` : row[key].n ? " (n 1)" : " (level)")) : "-" });
  return [
    { name: "series", kind: "text", value: (row) => row.name, cell: (row) => link(row.label, historyOf(row.series)) },
    side("A", "left"), side("B", "right"),
    { name: "B against A", number: true, value: (row) => row.change, cell: (row) => make("span", {}, row.size ?? (row.change === null ? "-" : changeOf(row.series, row.left.value, row.right.value))) },
    { name: "A ○ ● B", kind: "bars", cell: (row) => changeBar(row, farthest(rows)) },
    { name: "noise", number: true, cell: (row) => row.noise ?? "-" },
    { name: "verdict", cell: (row) => word(row.text, "", row.verdict) },
  ];
}

/** Return the end of the axis of the changes of a comparison, as a logarithm. */
const farthest = (rows) => Math.min(Math.log(4), Math.max(Math.log(1.1), ...rows.map(({ change }) => Math.abs(Math.log1p(Math.max(-0.75, change ?? 0))))));

/** Return a change on a logarithmic axis, in front of twice the noise of the series. */
function changeBar({ change, noise, verdict }, end) {
  if (change === null || change === undefined) return "";
  const x = (share) => 110 + 96 * Math.max(-1, Math.min(1, Math.log1p(Math.max(-0.99, share)) / end)), wide = (noise ?? "").endsWith("%") ? 2 * parseFloat(noise) / 100 : 0;
  const tone = `var(--${colours[verdict] === "failed" ? "ink" : colours[verdict] ?? "ink"})`;
  return shape("svg", { viewBox: "0 0 220 20", width: 220, height: 20, "aria-hidden": "true" }, shape("rect", { x: x(-wide), y: 2, width: x(wide) - x(-wide), height: 16, fill: "var(--grid)" }),
    shape("line", { x1: 110, y1: 0, x2: 110, y2: 20, stroke: "var(--muted)" }), shape("line", { x1: 110, y1: 10, x2: x(change), y2: 10, stroke: tone, "stroke-width": 2 }),
    shape("circle", { cx: 110, cy: 10, r: 4, fill: "var(--paper)", stroke: "var(--muted)", "stroke-width": 2 }), shape("circle", { cx: x(change), cy: 10, r: 5, fill: tone }));
}

async function comparePage() {
  const index = await load("index.js");
  const head = await headOf(parameters.get("suite") ?? index.suites[0]);
  if (head.runs.length < 2) throw new Error(`suite ${head.suite} has fewer than two runs`);
  const ids = head.runs.map(([run]) => run);
  const b = ids.includes(parameters.get("b")) ? parameters.get("b") : ids.at(-1);
  const cluster = (run) => head.runs[ids.indexOf(run)][1];
  const a = ids.includes(parameters.get("a")) ? parameters.get("a") : before(head, b, cluster(b)) ?? ids[0];
  const all = await seriesOf(head), months = [...new Set([monthOf(a), monthOf(b)])];
  const series = [...new Map([a, b].flatMap((run) => all.filter((line) => line.cluster === cluster(run))).map((line) => [line.id, line])).values()];
  const [files, [verdicts], points] = await Promise.all([loadAll(head, ...months.map((month) => `runs/${month}.js`)), loadAll(head, `compare/${b}/${a}.js`), pointsOf(series, () => months)]);
  const [from, to] = [a, b].map((id) => files.flatMap((file) => file.runs.map((run) => ({ ...run, facts: file.environments[run.environment] }))).find((run) => run.id === id));
  const keys = [...new Set([...Object.keys(from.facts), ...Object.keys(to.facts)])].filter((key) => !["not known", "revision folder"].includes(key)).sort((x, y) => (y === "revision") - (x === "revision") || (x < y ? -1 : 1));
  const differs = keys.filter((key) => from.facts[key] !== to.facts[key] && key in from.facts && key in to.facts);
  const unknown = keys.filter((key) => !(key in from.facts && key in to.facts));
  const rows = pairs(series, points, from, to, verdicts);
  rows.sort((x, y) => y.headline - x.headline || rank(x) - rank(y) || Math.abs(y.change ?? 0) - Math.abs(x.change ?? 0));
  const go = (values) => { location.href = page("compare", { suite: head.suite, a, b, ...values }); };
  const again = (count) => count ? `, measured again ${count === 1 ? "once" : `${count} times`}` : "";
  const minutes = new Set(ids.map(whenOf)), moment = (run) => minutes.size < ids.length ? `${whenOf(run)}:${run.slice(13, 15)}` : whenOf(run); // of runs within a minute
  const choices = [...head.runs].reverse().map(([run, name, , revision, count]) => [run, `${moment(run)} ${name} ${revision}`.trim() + again(count)]);
  document.querySelector("main").dataset.title = `${head.suite}: ${moment(a)} against ${moment(b)}`;
  return [
    make("div", { className: "controls" }, index.suites.length > 1 ? select("suite", index.suites.map((suite) => [suite, suite]), head.suite, (suite) => { location.href = page("compare", { suite }); }) : null,
      select("A", choices, a, (run) => go({ a: run })), select("B", choices, b, (run) => go({ b: run })), link("swap", page("compare", { suite: head.suite, a: b, b: a })), link("history", page("history", { suite: head.suite })),
      from.report ? link("report of A", reportOf(a)) : null, to.report ? link("report of B", reportOf(b)) : null),
    banner(rows, verdicts ? null : make("p", { className: "small" }, "by the history of each series; ", make("code", {}, `perfdag compare ${a} ${b} ${index.store}`), " pairs the points of a changed parameter too")),
    make("details", { open: differs.length > 0 && differs.length < 8 }, make("summary", {}, `Environment: ${differs.length || "no"} recorded difference${differs.length === 1 ? "" : "s"}`),
      make("ul", { className: "small" }, ...differs.map((key) => make("li", {}, `${key}: ${from.facts[key]} -> ${to.facts[key]}`)), unknown.length ? make("li", {}, `known of one run only: ${unknown.join(", ")}`) : null)),
    ...Object.entries(verdicts?.parameters ?? {}).map(([key, [from, to]]) => make("p", {}, `${key}: ${from} -> ${to}`)),
    ...Object.entries(verdicts?.missing ?? {}).map(([kind, [count, lines]]) => make("details", {}, make("summary", {}, `${kind}: ${count}`),
      make("ul", { className: "small" }, ...lines.map((line) => make("li", {}, line)), count > lines.length ? make("li", {}, `and ${count - lines.length} more`) : null))),
    table(pairColumns(rows), rows, { most: 50 }),
    make("p", { className: "muted small" }, `Grey behind a change is twice the noise of its series. The axis is logarithmic and ends at ${percent(Math.expm1(farthest(rows)))} and ${percent(Math.expm1(-farthest(rows)))}.`),
  ];
}

const pagesByName = {
  index: ["Suites", indexPage], history: [`${parameters.get("suite") ?? "?"}: history`, historyPage],
  benchmark: [`${parameters.get("name") ?? "?"}: benchmark`, benchmarkPage], compare: ["Two runs compared", comparePage],
};
show(...pagesByName[document.body.dataset.page]);
