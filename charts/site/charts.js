// Charts by Bokeh in the colours of the page: values of series over runs.
"use strict";

const drawn = new Map();

/** Draw a figure, which `build` returns, into an element. */
async function draw(element, build) {
  await loadLibrary();
  remove(element);
  const figure = build();
  drawn.set(element, figure);
  await Bokeh.Plotting.show(figure, element);
  element.dataset.drawn = "yes";
}

/** Remove a chart from its element. */
function remove(element) {
  const figure = drawn.get(element), view = figure && Bokeh.index[figure.id];
  if (view) Bokeh.index.delete(view);
  figure?.document?.remove_root(figure);
  drawn.delete(element);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [...drawn.keys()].forEach((element) => element.start()));

/** Return an element that draws itself by `build`, so that paper has it too. `name` says what it shows. */
function plot(build, height, name) {
  const element = make("div", { className: "plot", role: "img", ariaLabel: name, tabIndex: 0 });
  element.style.minHeight = `${height}px`;
  element.start = () => draw(element, () => build(height)).catch((error) => element.replaceChildren(error.message));
  setTimeout(element.start);
  return element;
}

/** Ticks of a time axis. The day stands below the first one, since those of hours lack it. */
const TIMES = { minsec: "%H:%M:%S", seconds: "%H:%M:%S", minutes: "%H:%M", hourmin: "%H:%M", hours: "%H:%M", days: "%m-%d", months: "%Y-%m", context: "%Y-%m-%d", context_which: "start" };

/** Return an empty figure over time in the colours of the page. */
function newFigure(height, y_axis_label) {
  const narrow = innerWidth < 700, [ink, muted, grid] = ["ink", "muted", "grid"].map(colour), font = "system-ui, sans-serif";
  const figure = Bokeh.Plotting.figure({ height, y_axis_label, x_axis_type: "datetime", sizing_mode: "stretch_width", tools: "box_zoom,xpan,xwheel_zoom,reset,copy,save", toolbar_location: narrow ? "above" : "right" });
  figure.toolbar.setv({ logo: null, active_scroll: null, active_drag: narrow ? null : figure.toolbar.tools.find((tool) => tool.type === "BoxZoomTool") }); // the wheel and a finger scroll the page
  figure.setv({ background_fill_color: null, border_fill_color: null, outline_line_color: grid });
  for (const axis of [...figure.xaxis, ...figure.yaxis]) {
    axis.setv({ axis_line_color: muted, major_tick_line_color: muted, minor_tick_line_color: null, major_label_text_color: ink, axis_label_text_color: ink, axis_label_text_font_style: "normal", axis_label_text_font: font, major_label_text_font: font });
  }
  for (const lines of [...figure.xgrid, ...figure.ygrid]) lines.grid_line_color = grid;
  figure.xaxis.formatter = new Bokeh.DatetimeTickFormatter(TIMES);
  figure.x_range.default_span = 2 * 86400e3; // milliseconds: a single run stands amid two days
  return figure;
}

/** Return the figure of a series over runs: {run, value, low, high, n} each, the noise of its levels as bands, and its steps. */
function overRuns(series, points, height) {
  const figure = newFigure(height, series.unit || "value");
  const scaled = (key) => points.map((point) => point[key] === null ? NaN : point[key] / series.factor);
  const levelOf = (run) => series.levels.filter(([start]) => start <= run).at(-1)?.[1];
  const x = points.map((point) => timeOf(point.run)), y = scaled("value"), line_color = colour("s0");
  const source = new Bokeh.ColumnDataSource({ data: {
    x, y, low: scaled("low"), high: scaled("high"), run: points.map((point) => point.run), n: points.map((point) => point.n),
    when: points.map((point) => whenOf(point.run)), text: points.map((point) => shown(point.value, series)),
    spread: points.map((point) => `${digits(point.low / series.factor)} to ${shown(point.high, series)}`),
    against: points.map((point) => { const level = levelOf(point.run); return level ? percent(point.value / level - 1) : "-"; }),
  } });
  levels(figure, series, x);
  figure.segment({ x0: { field: "x" }, x1: { field: "x" }, y0: { field: "low" }, y1: { field: "high" }, source, line_color, line_alpha: 0.45, line_width: 2 });
  figure.line({ x, y, line_color, line_width: 1.5 }); // a source of its own: hovering a point must not change the line
  const marks = figure.scatter({ x: { field: "x" }, y: { field: "y" }, source, size: 8, fill_color: line_color, line_color });
  const tooltips = [["run", "@when"], ["value", "@text"], ["spread", "@spread"], ["n", "@n"], ["to its level", "@against"]];
  figure.add_tools(new Bokeh.HoverTool({ renderers: [marks], tooltips, point_policy: "snap_to_data", mode: "mouse" }));
  figure.add_tools(new Bokeh.CrosshairTool({ line_color: colour("muted"), line_alpha: 0.6 }));
  figure.add_tools(new Bokeh.TapTool({ renderers: [marks], callback: new Bokeh.OpenURL({ url: reportOf("@run"), same_tab: true }) }));
  return figure;
}

/** Add the levels of a series as lines in the band of their noise, its steps with their sizes, and the span of an open one. */
function levels(figure, series, times) {
  const start = times[0], end = times.at(-1), fill_color = colour("muted");
  series.levels.forEach(([run, ...values], i) => {
    const next = series.levels[i + 1], x = [Math.max(timeOf(run), start), next ? timeOf(next[0]) : end];
    const [y, low, high] = values.map((value) => value === null ? null : value / series.factor);
    if (y === null || x[1] < start) return;
    if (low !== null && high !== null) figure.quad({ left: [x[0]], right: [x[1]], top: [high], bottom: [low], fill_color, fill_alpha: 0.12, line_color: null });
    figure.line({ x, y: [y, y], line_color: fill_color, line_dash: "dashed", line_width: 1.5 });
  });
  if (series.left) figure.add_layout(new Bokeh.BoxAnnotation({ left: timeOf(series.left), fill_color: colour("bad"), fill_alpha: 0.07 }));
  for (const change of series.changes.filter((item) => timeOf(item.run) >= start)) {
    const at = timeOf(change.run), line_color = colour({ worse: "bad", better: "good" }[change.word] ?? "noisy");
    figure.add_layout(new Bokeh.Span({ location: at, dimension: "height", line_color, line_dash: "dotted", line_width: 1.5 }));
    figure.add_layout(new Bokeh.Label({ x: at, y: 4, y_units: "screen", x_offset: at > (start + end) / 2 ? -4 : 4, text_align: at > (start + end) / 2 ? "right" : "left", text: `${change.size} ${dayOf(change.run)}`, text_color: line_color, text_font_size: "12px", text_font_style: "bold" }));
  }
}
