// Charts by Bokeh in the colours of the page: values of series over runs, and changes of series.
"use strict";

const drawn = new Map();

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const palette = () => [0, 1, 2, 3, 4, 5].map((i) => colour(`s${i}`));
const DASHES = ["solid", "dashed", "dotted", "dotdash"];

/** Give a figure the colours of the page. */
function style(figure) {
  const [ink, muted, grid] = ["ink", "muted", "grid"].map(colour);
  figure.setv({ background_fill_color: null, border_fill_color: null, outline_line_color: grid });
  for (const axis of [...figure.xaxis, ...figure.yaxis]) {
    axis.setv({ axis_line_color: muted, major_tick_line_color: muted, minor_tick_line_color: null, major_label_text_color: ink, axis_label_text_color: ink, axis_label_text_font_style: "normal" });
  }
  for (const line of [...figure.xgrid, ...figure.ygrid]) line.grid_line_color = grid;
  figure.legend.setv({ background_fill_color: null, border_line_color: null, label_text_color: ink, inactive_fill_color: colour("paper"), click_policy: "hide", label_text_font_size: "9pt", spacing: 0 });
  figure.toolbar.logo = null;
}

/** Draw a chart into an element by `build`, and again when the colours of the page change. */
async function draw(element, build) {
  await loadLibrary();
  const again = async () => {
    remove(element);
    const figure = build();
    style(figure);
    drawn.set(element, { again, figure });
    await Bokeh.Plotting.show(figure, element);
    element.dataset.drawn = "yes";
  };
  await again();
}

/** Remove a chart from its element. */
function remove(element) {
  const figure = drawn.get(element)?.figure;
  const view = figure && Bokeh.index[figure.id];
  if (view) Bokeh.index.delete(view);
  figure?.document?.remove_root(figure);
  drawn.delete(element);
}

/** Replace the charts in an element. */
function replaceCharts(element, ...children) {
  element.querySelectorAll(".plot").forEach(remove);
  element.replaceChildren(...children);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [...drawn.values()].forEach(({ again }) => again()));

/** Draw when an element comes near the window. */
const nearby = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((item) => item.isIntersecting)) {
    nearby.unobserve(entry.target);
    entry.target.start();
  }
}, { rootMargin: "300px" });

/** Return an element that draws itself by `build` when somebody scrolls to it. */
function lazyPlot(build, height) {
  const element = make("div", { className: "plot" });
  element.style.minHeight = `${height}px`;
  element.start = () => draw(element, build).catch((error) => element.replaceChildren(error.message));
  nearby.observe(element);
  return element;
}

const narrow = () => innerWidth < 700;
const TOOLS = "box_zoom,xpan,xwheel_zoom,reset,save";

/** Ticks of a time axis. The day stands below the first one, since those of hours lack it. */
const TIMES = { minsec: "%H:%M:%S", seconds: "%H:%M:%S", minutes: "%H:%M", hourmin: "%H:%M", hours: "%H:%M", days: "%m-%d", months: "%Y-%m", context: "%Y-%m-%d", context_which: "start" };

function newFigure(height, options) {
  const figure = Bokeh.Plotting.figure({ height, sizing_mode: "stretch_width", tools: TOOLS, toolbar_location: narrow() ? "above" : "right", ...options });
  figure.toolbar.active_scroll = null; // the wheel and a finger scroll the page
  figure.toolbar.active_drag = narrow() ? null : figure.toolbar.tools.find((tool) => tool.type === "BoxZoomTool");
  return figure;
}

function hover(figure, renderers, tooltips) {
  figure.add_tools(new Bokeh.HoverTool({ renderers, tooltips, point_policy: "snap_to_data" }));
}

/** Return the figure of series over runs. A line is {name, series, points}, where a point is
 * {run, value, low, high, n}. Levels and changes are drawn where there is one line. */
function overRuns(lines, { log = false, height = 280 } = {}) {
  const first = lines[0].series, single = lines.length === 1;
  const figure = newFigure(height, { x_axis_type: "datetime", y_axis_type: log ? "log" : "linear", y_axis_label: first.unit || "value" });
  figure.xaxis.formatter = new Bokeh.DatetimeTickFormatter(TIMES);
  figure.x_range.default_span = 2 * 86400e3; // milliseconds: a single run stands amid two days
  const hues = palette(), marks = [];
  lines.forEach(({ name, series, points }, i) => {
    const line_color = hues[i % hues.length], line_dash = DASHES[Math.floor(i / hues.length) % DASHES.length];
    const scaled = (key) => points.map((point) => point[key] === null || (log && point[key] <= 0) ? NaN : point[key] / first.factor);
    const source = new Bokeh.ColumnDataSource({ data: {
      x: points.map((point) => timeOf(point.run)), y: scaled("value"), low: scaled("low"), high: scaled("high"),
      run: points.map((point) => point.run), n: points.map((point) => point.n), name: points.map(() => name),
      text: points.map((point) => shown(point.value, series)),
      spread: points.map((point) => `${shown(point.low, series)} to ${shown(point.high, series)}`),
    } });
    const legend = single ? {} : { legend_label: name };
    const at = { x: { field: "x" }, y: { field: "y" }, source, ...legend };
    figure.segment({ x0: { field: "x" }, x1: { field: "x" }, y0: { field: "low" }, y1: { field: "high" }, source, line_color, line_alpha: 0.45, line_width: 2, ...legend });
    figure.line({ ...at, line_color, line_dash, line_width: 1.5 });
    marks.push(figure.scatter({ ...at, size: 6, fill_color: line_color, line_color }));
    if (single) levels(figure, series, points, log);
  });
  hover(figure, marks, [...(single ? [] : [["series", "@name"]]), ["value", "@text"], ["spread", "@spread"], ["n", "@n"], ["run", "@run"]]);
  if (!single) figure.add_layout(figure.legend, "below");
  const widest = 40 + 7 * Math.max(...lines.map(({ name }) => name.length)); // pixels of a legend's column
  if (!single) figure.legend.ncols = Math.max(1, Math.min(4, Math.floor((innerWidth - 100) / widest)));
  return figure;
}

/** Add the levels of a series as steps, and its changes as vertical lines. */
function levels(figure, series, points, log) {
  const start = timeOf(points[0].run), end = timeOf(points.at(-1).run);
  series.levels.forEach(([run, value], i) => {
    const next = series.levels[i + 1];
    const x = [Math.max(timeOf(run), start), next ? timeOf(next[0]) : end];
    const y = value / series.factor;
    if (value === null || x[1] < start || (log && y <= 0)) return;
    figure.line({ x, y: [y, y], line_color: colour("muted"), line_dash: "dashed", line_width: 1.5 });
  });
  for (const change of series.changes.filter((item) => timeOf(item.run) >= start)) {
    const line_color = colour({ worse: "bad", better: "good" }[change.word] ?? "noisy");
    figure.add_layout(new Bokeh.Span({ location: timeOf(change.run), dimension: "height", line_color, line_dash: "dotted", line_width: 1.5 }));
  }
}

/** Return the figure of relative changes, one row a series: {name, change, text, verdict}. */
function changesOf(rows) {
  const most = narrow() ? 20 : 48;
  const short = (name) => name.length > most ? `…${name.slice(1 - most)}` : name;
  const names = rows.map((row, i) => `${i + 1}. ${short(row.name)}`).reverse();
  const inOrder = [...rows].reverse();
  const figure = newFigure(90 + 22 * rows.length, { y_range: names, x_axis_label: "B against A, %" });
  const hue = { worse: colour("bad"), better: colour("good"), unclear: colour("noisy") };
  const source = new Bokeh.ColumnDataSource({ data: {
    y: names, x: inOrder.map((row) => 100 * row.change), zero: inOrder.map(() => 0), name: inOrder.map((row) => row.name),
    text: inOrder.map((row) => row.text), verdict: inOrder.map((row) => row.verdict ?? "-"), hue: inOrder.map((row) => hue[row.verdict] ?? colour("muted")),
  } });
  figure.segment({ x0: { field: "zero" }, x1: { field: "x" }, y0: { field: "y" }, y1: { field: "y" }, source, line_color: { field: "hue" }, line_width: 2 });
  const dots = figure.scatter({ x: { field: "x" }, y: { field: "y" }, source, size: 9, fill_color: { field: "hue" }, line_color: { field: "hue" } });
  hover(figure, [dots], [["series", "@name"], ["A and B", "@text"], ["verdict", "@verdict"]]);
  return figure;
}
