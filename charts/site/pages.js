// The pages: runs, the history of a suite, the series of a benchmark, and two runs compared.
"use strict";

const ENOUGH_RUNS = 60, CHARTS = 6, LINES = 12;

/** Return months of a suite, newest first, until they hold enough runs. */
function newestMonths(head, enough) {
  const counts = new Map();
  for (const [run] of head.runs) counts.set(monthOf(run), (counts.get(monthOf(run)) ?? 0) + 1);
  const chosen = [];
  let runs = 0;
  for (const month of [...counts.keys()].sort().reverse()) {
    if (runs >= enough) break;
    chosen.push(month);
    runs += counts.get(month);
  }
  return chosen;
}

/** Add the points of blocks of values to lists by series id, those of one run or of all. */
function collect(blocks, points, only) {
  for (const { runs, series } of blocks) {
    for (const [id, [value, low, high, n]] of Object.entries(series)) {
      const list = points.get(id) ?? [];
      runs.forEach((run, i) => { if (value[i] !== null && (only ?? run) === run) list.push({ run, value: value[i], low: low[i], high: high[i], n: n[i] }); });
      if (list.length) points.set(id, list);
    }
  }
  return points;
}

/** Return the values of some series of a benchmark by id, each a list of points, oldest first. */
async function pointsOf(head, benchmark, enough) {
  const beginnings = newestMonths(head, enough).map((month) => `values/${benchmark}/${month}/`);
  const blocks = await loadAll(head, ...beginnings);
  const points = new Map();
  collect(blocks, points);
  for (const list of points.values()) list.sort((a, b) => a.run < b.run ? -1 : 1);
  return points;
}

/** Return the points of the runs of one cluster. */
function onCluster(head, points, cluster) {
  const runs = new Set(head.runs.filter(([, name]) => name === cluster).map(([run]) => run));
  return points.filter((point) => runs.has(point.run));
}

/** Return the series of a suite, each with its suite's head and the folder of its benchmark. */
async function seriesOf(head, benchmark) {
  const paths = Object.keys(head.files).filter((path) => path.startsWith(benchmark ? `series/${benchmark}/` : "series/"));
  const files = await Promise.all(paths.map((path) => load(`${head.suite}/${path}`, head.files[path])));
  return files.flatMap((file, i) => file.series.map((series) => ({ ...series, head, benchmark: file.benchmark, folder: paths[i].split("/")[1] })));
}

const benchmarkLinks = (series) => {
  const folders = new Map(series.map((line) => [line.folder, line.benchmark]));
  return [...folders].map(([folder, name]) => link(name, page("benchmark", { name: folder })));
};

/** Return the run before one, of the same cluster. */
function before(head, run, cluster) {
  const earlier = head.runs.filter(([id, name, trigger]) => id < run && name === cluster && !["confirm", "part"].includes(trigger));
  return earlier.at(-1)?.[0];
}

const reportOf = (run) => `../runs/${run}/report.html`;

function runColumns(head, runs) {
  const reports = new Set(runs.filter((run) => run.report).map((run) => run.id));
  const values = new Map(head.runs.map(([run], i) => [run, head.headline?.values[i] ?? null]));
  const order = head.runs.map(([run]) => run);
  const past = (run) => order.slice(Math.max(0, order.indexOf(run.id) - 29), order.indexOf(run.id) + 1).map((id) => values.get(id));
  const statuses = (run) => Object.entries(run.statuses ?? {}).map(([status, count]) => `${count} ${status}`).join(", ") || "-";
  const bad = (run) => Object.keys(run.statuses ?? {}).find((status) => colours[status] === "bad");
  const title = (run) => (run.reasons ?? []).join("\n");
  const judged = (run) => run.verdict === "failed" ? "failed" : run.word;
  const columns = [
    { name: "run", kind: "value", value: (run) => run.id, cell: (run) => make("span", { title: run.id }, whenOf(run.id)) },
    { name: "status", value: statuses, cell: (run) => make("span", { className: bad(run) ? "bad" : "", title: title(run) }, statuses(run)) },
    { name: "verdict", value: judged, cell: (run) => make("span", {},
      word(judged(run), [...(run.answers ?? []), run.verdict_why].filter(Boolean).join("\n")), run.gate === "failed" ? make("span", { className: "bad" }, ", gate failed") : "") },
    { name: "trust", value: (run) => run.trust, cell: (run) => word(run.trust, run.why) },
    { name: "duration", number: true, value: (run) => run.seconds, cell: (run) => run.duration },
  ];
  if (head.headline) {
    columns.push(
      { name: "headline", number: true, value: (run) => values.get(run.id), cell: (run) => shown(values.get(run.id), head.headline) },
      { name: "last 30", value: () => 0, cell: (run) => sparkline(past(run), `${head.headline.name}, 30 runs up to ${whenOf(run.id)}`) },
    );
  }
  columns.push({ name: "links", value: (run) => `${run.id} ${run.cluster} ${run.trigger}`, cell: (run) => {
    const previous = before(head, run.id, run.cluster);
    return make("span", { className: "links" },
      run.report ? link("report", reportOf(run.id)) : null,
      previous && reports.has(previous) ? link("previous", reportOf(previous)) : null,
      previous ? link("compare", page("compare", { suite: head.suite, a: previous, b: run.id })) : null);
  } });
  if (new Set(head.runs.map(([, cluster]) => cluster)).size > 1) columns.splice(1, 0, { name: "cluster", cell: (run) => run.cluster });
  return columns;
}

async function suiteSection(suite) {
  const head = await load(`${suite}/suite.js`);
  const section = make("section", { id: suite });
  let enough = 10;
  async function fill() {
    const wanted = newestMonths(head, enough);
    const files = await loadAll(head, ...wanted.map((month) => `runs/${month}.js`));
    const runs = files.flatMap((file) => file.runs).filter((run) => run.trigger !== "confirm").sort((a, b) => a.id < b.id ? 1 : -1);
    const whole = head.runs.filter(([, , trigger]) => trigger !== "confirm").length;
    const more = make("button", { type: "button", hidden: runs.length >= whole }, "Older runs");
    more.onclick = () => { enough = Math.max(enough * 4, 60); fill(); };
    const list = table(runColumns(head, runs), runs, { most: enough > 10 ? Infinity : 10, label: `of ${whole} run${whole > 1 ? "s" : ""}` });
    const answers = runs.filter((run) => run.answers?.length);
    const about = make("p", {}, link("History", page("history", { suite })),
      ...answers.map((run) => make("span", {}, ` ${run.cluster} `, word(run.answers.join("; "), "", run.word))),
      head.headline ? make("span", { className: "muted small" }, ` Headline: ${head.headline.name}.`) : "");
    section.replaceChildren(make("h2", {}, suite), about, ...head.damaged.map((line) => make("p", { className: "alert" }, line)), list, more);
  }
  await fill();
  return section;
}

async function indexPage() {
  const index = await load("index.js");
  const sections = await Promise.all(index.suites.map((suite) => suiteSection(suite).catch((error) => make("p", { className: "alert" }, error.message))));
  const nav = make("nav", {}, ...index.suites.map((suite) => link(suite, `#${suite}`)));
  return [index.suites.length > 1 ? nav : null, ...sections, make("p", { className: "muted small" }, `perfdag ${index.version}. Times are UTC.`)];
}

/** Return the controls of charts: a filter for each parameter with several values, log axis, all runs. */
function controls(series, state, draw, choose, few) {
  const log = make("input", { type: "checkbox" });
  log.onchange = () => { state.log = log.checked; draw(); };
  const older = make("button", { type: "button", hidden: few }, "All runs");
  older.onclick = () => { state.enough = Infinity; older.hidden = true; draw(); };
  return make("div", { className: "controls" }, ...filters(series, (kept) => { choose(kept); draw(); }), make("label", {}, log, " log axis"), older);
}

function filters(series, change) {
  const values = new Map();
  for (const line of series) for (const [name, value] of Object.entries(line.settings)) values.set(name, (values.get(name) ?? new Set()).add(value));
  const chosen = {};
  const numeric = (a, b) => parseFloat(a) - parseFloat(b) || (a < b ? -1 : 1);
  return [...values].filter(([, some]) => some.size > 1).slice(0, 12).map(([name, some]) => select(
    name, [["", "all"], ...[...some].sort(numeric).map((value) => [`=${value}`, value])], "", (value) => {
      if (value) chosen[name] = value.slice(1); else delete chosen[name];
      change(series.filter((line) => Object.entries(chosen).every(([key, wanted]) => line.settings[key] === wanted)));
    }));
}

const last = (series) => series.changes.at(-1);
function seriesColumns(open) {
  const level = (series) => series.levels.at(-1)?.[1] ?? null;
  const name = (series) => make("a", { href: `#${series.id}`, onclick: () => open(series) }, series.name);
  return [
    { name: "series", kind: "text", value: (series) => series.name, cell: name },
    { name: "answer", value: (series) => series.answer, cell: (series) => word(series.answer, "", series.word) },
    { name: "level", number: true, value: level, cell: (series) => shown(level(series), series) },
    { name: "noise", number: true, value: (series) => series.noise, cell: (series) => percent(series.noise, false) },
    { name: "newest", number: true, value: (series) => series.newest, cell: (series) => series.newest === null ? "absent" : shown(series.newest, series) },
    { name: "accepted", kind: "text", value: (series) => series.acks.map((ack) => ack.reason).join(), cell: (series) => series.acks.map((ack) => `since ${dayOf(ack.run)}: ${ack.reason}`).join("; ") || "-" },
  ];
}

function changeText(change) {
  const facts = Object.entries(change.environment).map(([key, [from, to]]) => `${key} ${from} -> ${to}`).join("; ");
  return `${dayOf(change.run)}: ${change.size} ${change.word}, ${change.step}. Changed: ${facts.slice(0, 300) || "nothing that is recorded"}.`;
}

/** Return one chart of one series with its changes, which a link can name. */
function seriesChart(series, points, options) {
  const own = onCluster(series.head, points.get(series.id) ?? [], series.cluster);
  const heading = make("h3", {}, `${series.name} `, word(series.answer, "", series.word), " ", link("#", `#${series.id}`, { title: "link to this chart" }));
  const changes = series.changes.slice().reverse().map((change) => make("li", {}, changeText(change), " ",
    link("compare", page("compare", { suite: series.head.suite, a: change.before, b: change.run }))));
  const plot = own.length ? lazyPlot(() => overRuns([{ name: series.name, series, points: own }], options), 280) : make("p", { className: "muted" }, "no run in these months");
  return make("section", { id: series.id, className: "chart" }, heading, plot, changes.length ? make("ul", { className: "small" }, ...changes) : null);
}

async function historyPage() {
  const head = await headOf(parameters.get("suite"));
  const clusters = [...new Set(head.runs.map(([, cluster]) => cluster).reverse())];
  const cluster = parameters.get("cluster") ?? clusters[0];
  const all = (await seriesOf(head)).filter((series) => series.cluster === cluster);
  const runs = head.runs.filter(([, name]) => name === cluster);
  const rank = (series) => [-(last(series) ? timeOf(last(series).run) : 0), !series.headline];
  const first = [...all].sort((a, b) => { const [x, y] = [rank(a), rank(b)]; return x[0] - y[0] || x[1] - y[1]; });
  const charts = make("div"), state = { chosen: first, most: CHARTS, enough: ENOUGH_RUNS, log: false };
  async function draw() {
    const some = state.chosen.slice(0, state.most);
    const folders = [...new Set(some.map((series) => series.folder))];
    const points = new Map((await Promise.all(folders.map((folder) => pointsOf(head, folder, state.enough)))).flatMap((map) => [...map]));
    const more = make("button", { type: "button", hidden: state.chosen.length <= state.most }, `More charts (${state.chosen.length - some.length})`);
    more.onclick = () => { state.most += 20; draw(); };
    replaceCharts(charts, ...some.map((series) => seriesChart(series, points, { log: state.log })), more);
  }
  const open = (series) => { state.chosen = [series, ...state.chosen.filter((line) => line !== series)]; return draw(); };
  const named = all.find((series) => series.id === decodeURIComponent(location.hash.slice(1)));
  await (named ? open(named) : draw());
  if (named) requestAnimationFrame(() => document.getElementById(named.id)?.scrollIntoView());
  const alerts = head.alerts.filter((alert) => alert.cluster === cluster);
  const newest = runs.at(-1)?.[0];
  return [
    make("p", { className: "muted" }, `${runs.length} ${runs.length === 1 ? "run" : "runs"}${newest ? ` from ${dayOf(runs[0][0])} to ${dayOf(newest)}` : ""}, ${all.length} series${cluster ? `, cluster ${cluster}` : ""}`),
    make("nav", {}, ...benchmarkLinks(all), runs.length > 1 ? link("Compare the newest two runs", page("compare", { suite: head.suite, a: before(head, newest, cluster) ?? runs[0][0], b: newest })) : null),
    clusters.length > 1 ? select("cluster", clusters.map((name) => [name, name || "this machine"]), cluster, (name) => { location.href = page("history", { suite: head.suite, cluster: name }); }) : null,
    ...head.damaged.map((line) => make("p", { className: "alert" }, line)),
    head.acks_wrong ? make("p", { className: "alert" }, head.acks_wrong) : null,
    ...alerts.map((alert) => make("div", { className: "alert" }, make("pre", {}, alert.text))),
    ...(alerts.length ? [] : all.filter((series) => series.headline && series.word === "worse")).map((series) => make("p", {}, `${series.name}: `, word(series.answer, "", series.word))),
    head.acks.length ? make("details", {}, make("summary", {}, `${head.acks.length} accepted level${head.acks.length > 1 ? "s" : ""}`), make("ul", {}, ...head.acks.map((ack) => make("li", {}, `${ack.series} since ${dayOf(ack.run)}: ${ack.reason}${ack.until ? `, until ${ack.until}` : ""}`)))) : null,
    make("h2", {}, "Series"), table(seriesColumns(open), first, { most: 25, label: "series" }),
    make("h2", {}, "Charts"), controls(all, state, draw, (kept) => { state.chosen = first.filter((line) => kept.includes(line)); }, runs.length <= ENOUGH_RUNS),
    make("p", { className: "muted small" }, "Bars are the spread of a run, dashed lines levels, dotted lines changes of level."), charts,
  ];
}

async function benchmarkPage() {
  const index = await load("index.js"), name = parameters.get("name") ?? "";
  const heads = await Promise.all(index.suites.map((suite) => load(`${suite}/suite.js`)));
  const all = (await Promise.all(heads.map((head) => seriesOf(head, name)))).flat();
  if (!all.length) throw new Error(`no series of a benchmark ${name}`);
  const several = new Set(all.map((series) => series.head.suite)).size > 1 || new Set(all.map((series) => series.cluster)).size > 1;
  for (const series of all) {
    if (several) Object.assign(series.settings, { suite: series.head.suite, cluster: series.cluster });
    series.label = [several ? `${series.head.suite} ${series.cluster}` : "", series.name].join(" ").trim();
  }
  document.title = `${all[0].benchmark}: series`;
  const points = new Map();
  const charts = make("div"), list = make("div"), state = { kept: all, enough: ENOUGH_RUNS, log: false };
  async function draw() {
    await Promise.all(heads.map(async (head) => points.set(head, await pointsOf(head, name, state.enough))));
    const groups = new Map(), nameOf = ({ label, metric }) => label.endsWith(` ${metric}`) ? label.slice(0, -metric.length - 1) : label; // the heading has the metric
    for (const series of state.kept) {
      const key = `${series.metric} ${series.unit}`;
      groups.set(key, [...(groups.get(key) ?? []), series]);
    }
    const parts = [...groups].sort(([, a], [, b]) => b[0].headline - a[0].headline).map(([key, group]) => {
      const lines = group.slice(0, LINES).map((series) => ({ name: nameOf(series), series, points: onCluster(series.head, points.get(series.head).get(series.id) ?? [], series.cluster) })).filter((line) => line.points.length);
      if (!lines.length) return null;
      const left = group.length - lines.length;
      return make("section", { id: key, className: "chart" }, make("h3", {}, `${group[0].metric} `, link("#", `#${encodeURIComponent(key)}`, { title: "link to this chart" })),
        left > 0 ? make("p", { className: "muted small" }, `${lines.length} of ${group.length} series; choose parameters to see the others`) : null,
        lazyPlot(() => overRuns(lines, { log: state.log, height: 340 + (lines.length > 1 ? 24 * lines.length : 0) }), 340));
    });
    replaceCharts(charts, ...parts.filter(Boolean));
    const where = (series) => link(series.label, page("history", { suite: series.head.suite, cluster: series.cluster }, series.id));
    const columns = seriesColumns(() => {});
    columns[0].cell = where;
    list.replaceChildren(table(columns, state.kept, { most: 25, label: "series" }));
  }
  await draw();
  const own = new Set(all.map((series) => series.head));
  return [make("nav", {}, ...[...own].map((head) => link(`History of ${head.suite}`, page("history", { suite: head.suite })))),
    controls(all, state, draw, (kept) => { state.kept = kept; }, heads.every((head) => head.runs.length <= ENOUGH_RUNS)), charts, make("h2", {}, "Series"), list];
}

/** Return the rows of two runs side by side. `verdicts` are those of the product, by series id. */
function pairs(series, a, b, verdicts) {
  const same = new Set(verdicts?.same), inA = verdicts?.paired ?? {}, paired = new Set(Object.values(inA));
  return series.filter((line) => !paired.has(line.id) && (a.has(line.id) || b.has(line.id))).map((line) => {
    const [left, right] = [a.get(inA[line.id] ?? line.id)?.[0], b.get(line.id)?.[0]];
    const change = left && right && left.value ? right.value / left.value - 1 : null;
    const [verdict, answer, size, noise] = verdicts?.series[line.id] ?? [];
    return { series: line, name: line.name, left, right, change, verdict, answer, size, noise, same: same.has(line.id), text: `${shown(left?.value, line)} and ${shown(right?.value, line)}` };
  });
}

function pairColumns(judged, head) {
  const side = (name, key) => ({ name, number: true, value: (row) => row[key]?.value ?? null, cell: (row) => row[key]
    ? make("span", { title: `${row[key].n} sample${row[key].n > 1 ? "s" : ""}` }, shown(row[key].value, row.series), make("span", { className: "muted small" }, row[key].n > 1 ? ` (${shown(row[key].low, row.series)} to ${shown(row[key].high, row.series)}, n ${row[key].n})` : " (n 1)")) : "-" });
  const columns = [
    { name: "series", kind: "text", value: (row) => row.name, cell: (row) => link(row.name, page("history", { suite: head.suite, cluster: row.series.cluster }, row.series.id)) },
    side("A", "left"), side("B", "right"),
    { name: "B against A", number: true, value: (row) => row.change, cell: (row) => row.size ?? percent(row.change) },
  ];
  if (judged) columns.push(
    { name: "noise", number: true, value: (row) => parseFloat(row.noise) || 0, cell: (row) => row.noise ?? "-" },
    { name: "answer", value: (row) => row.answer ?? "-", cell: (row) => row.verdict ? word(row.answer, "", row.verdict) : make("span", { className: "muted" }, row.same ? "same" : "not compared") });
  return columns;
}

/** Return the verdicts of a run against another: stored for neighbours, else by `site --serve`. */
async function verdictsOf(head, a, b) {
  const path = `compare/${b}/${a}.js`;
  if (!(path in head.files) && location.protocol === "file:") return null;
  return load(`${head.suite}/${path}`, head.files[path] ?? "live").catch(() => null);
}

async function comparePage() {
  const index = await load("index.js");
  const head = await headOf(parameters.get("suite") ?? index.suites[0]);
  if (head.runs.length < 2) throw new Error(`suite ${head.suite} has fewer than two runs`);
  const ids = head.runs.map(([run]) => run);
  const b = ids.includes(parameters.get("b")) ? parameters.get("b") : ids.at(-1);
  const cluster = (run) => head.runs[ids.indexOf(run)][1];
  const a = ids.includes(parameters.get("a")) ? parameters.get("a") : before(head, b, cluster(b)) ?? ids[0];
  const all = await seriesOf(head);
  const series = [...new Map(all.map((line) => [line.id, line])).values()];
  const wanted = [...new Set([monthOf(a), monthOf(b)])];
  const folders = [...new Set(series.map((line) => line.folder))];
  const blocks = await loadAll(head, ...folders.flatMap((folder) => wanted.map((month) => `values/${folder}/${month}/`)));
  const side = (run) => collect(blocks, new Map(), run);
  const [files, verdicts] = await Promise.all([loadAll(head, ...wanted.map((month) => `runs/${month}.js`)), verdictsOf(head, a, b)]);
  const facts = (run) => files.flatMap((file) => file.runs.filter((item) => item.id === run).map((item) => file.environments[item.environment]))[0] ?? {};
  const [from, to] = [facts(a), facts(b)];
  const differs = [...new Set([...Object.keys(from), ...Object.keys(to)])].sort().filter((key) => from[key] !== to[key]);
  const rows = pairs(series, side(a), side(b), verdicts);
  const ranks = ["worse", "better", "unclear"];
  const rank = (row) => ranks.includes(row.verdict) ? ranks.indexOf(row.verdict) : 3;
  rows.sort((x, y) => rank(x) - rank(y) || y.series.headline - x.series.headline || Math.abs(y.change ?? 0) - Math.abs(x.change ?? 0));
  const changed = rows.filter((row) => row.change !== null), decided = changed.filter((row) => rank(row) < 2);
  const charted = (decided.length ? decided : changed).slice(0, 25);
  const go = (values) => { location.href = page("compare", { suite: head.suite, a, b, ...values }); };
  const choices = [...head.runs].reverse().map(([run, name]) => [run, `${whenOf(run)} ${name}`]);
  return [
    make("div", { className: "controls" }, index.suites.length > 1 ? select("suite", index.suites.map((suite) => [suite, suite]), head.suite, (suite) => { location.href = page("compare", { suite }); }) : null,
      select("A", choices, a, (run) => go({ a: run })), select("B", choices, b, (run) => go({ b: run })), link("swap", page("compare", { suite: head.suite, a: b, b: a })), link("history", page("history", { suite: head.suite }))),
    verdicts ? make("p", {}, `Verdicts: ${verdicts.count}.`)
      : make("p", { className: "muted" }, "No verdicts are stored for these two: ", make("code", {}, `perfdag compare ${a} ${b}`), ", or open the pages with ", make("code", {}, "perfdag site --serve"), "."),
    make("details", { open: differs.length > 0 && differs.length < 8 }, make("summary", {}, `Environment: ${differs.length || "no"} difference${differs.length === 1 ? "" : "s"}`), make("ul", { className: "small" }, ...differs.map((key) => make("li", {}, `${key}: ${from[key] ?? "-"} -> ${to[key] ?? "-"}`)))),
    ...Object.entries(verdicts?.parameters ?? {}).map(([key, [from, to]]) => make("p", {}, `${key}: ${from} -> ${to}`)),
    ...Object.entries(verdicts?.missing ?? {}).map(([kind, [count, lines]]) => make("details", {}, make("summary", {}, `${kind}: ${count}`),
      make("ul", { className: "small" }, ...lines.map((line) => make("li", {}, line)), count > lines.length ? make("li", {}, `and ${count - lines.length} more`) : null))),
    charted.length ? make("section", { id: "changes", className: "chart" }, make("h3", {}, "Changes, ", charted.length < rows.length ? `${charted.length} of ${rows.length} series ` : "", link("#", "#changes")), lazyPlot(() => changesOf(charted), 90 + 22 * charted.length)) : null,
    table(pairColumns(verdicts, head), rows, { most: 50, label: "series" }),
  ];
}

const pagesByName = {
  index: ["Runs", indexPage], history: [`${parameters.get("suite") ?? "?"}: history`, historyPage],
  benchmark: [`${parameters.get("name") ?? "?"}: series`, benchmarkPage], compare: ["Two runs compared", comparePage],
};
show(...pagesByName[document.body.dataset.page]);
