// Charts of series over runs, one point a run. They are SVG in the colours of the page, so that paper and dark screens have them too.
"use strict";

function shape(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  element.append(...children);
  return element;
}

const FEWEST_RUNS = 3; // of a chart, as of a level: words say as much of fewer

/** Return round numbers between two, about five. */
function ticks(low, high) {
  const rough = (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough)), step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => +((first + i) * step).toPrecision(6));
}

const DAY = 864e5, GAP = 4; // usual distances of two runs without one that are a gap
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** Return about so many moments between two with their texts: hours of a day, days, or starts of months. */
function dates(begin, end, count) {
  const days = (end - begin) / DAY, first = new Date(begin), starts = [];
  if (days > 70) {
    const step = [1, 2, 3, 6, 12].find((months) => days / 30.4 / months <= count) ?? 24;
    for (let month = Math.ceil((first.getUTCMonth() + 1) / step) * step; ; month += step) {
      const moment = Date.UTC(first.getUTCFullYear(), month), date = new Date(moment);
      if (moment > end) return starts;
      starts.push([moment, date.getUTCMonth() && starts.length ? MONTHS[date.getUTCMonth()] : `${MONTHS[date.getUTCMonth()]} ${date.getUTCFullYear()}`]);
    }
  }
  const step = days < 2 ? DAY / 24 * Math.ceil(24 * days / count || 1) : DAY * ([1, 2, 7, 14].find((width) => days / width <= count) ?? 28);
  for (let moment = Math.ceil(begin / step) * step; moment <= end; moment += step) {
    const date = new Date(moment);
    starts.push([moment, days < 2 ? date.toISOString().slice(11, 16) : `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`]);
  }
  return starts;
}

/** Return what an axis of time needs of some runs: their moments, those between two, and the gaps without a run. */
function timeline(runs) {
  const moments = runs.map(timeOf), begin = moments[0], end = moments.at(-1), distances = moments.slice(1).map((moment, i) => moment - moments[i]);
  const usual = [...distances].sort((a, b) => a - b)[distances.length >> 1];
  /** Return the moment between a run and the one before it. */
  const edge = (run) => {
    const i = runs.findIndex((other) => other >= run);
    return i < 0 ? end : i === 0 ? begin : (moments[i - 1] + moments[i]) / 2;
  };
  const gaps = distances.flatMap((distance, i) => distance > Math.max(GAP * usual, (end - begin) / 30) ? [i + 1] : []);
  return { moments, begin, end, edge, gaps };
}

/** Return a chart of a series over points {run, value, low, high, n}: the noise of its levels as bands, its steps with their sizes
 * and when they may have begun, a slow drift as a line, and the span of an open step. A wide one has axes, and says under the pointer what a run measured; a click opens its report. */
function chartOf(series, points, width, height = 96, wide = false) {
  const [left, right, top, bottom] = wide ? [52, 8, 36, 22] : [4, 4, height > 60 ? 18 : 4, 4];
  const known = points.filter(({ value }) => value !== null), newest = known.at(-1);
  if (known.length < FEWEST_RUNS) return null;
  const runs = known.map(({ run }) => run), time = timeline(runs), after = (run) => runs.find((other) => other > run) ?? "~";
  const levels = series.levels.map(([run, middle, low, high], i) => ({ from: time.edge(run), to: i + 1 in series.levels ? time.edge(series.levels[i + 1][0]) : time.end, middle, low, high }))
    .filter(({ from, to, low, high }) => to > from && low !== null && high !== null);
  const bounds = [...known.map(({ value }) => value), ...levels.flatMap(({ low, high }) => [low, high])];
  const low = Math.min(...bounds), range = Math.max(...bounds) - low || Math.abs(low) || 1, floor = height - bottom;
  const x = (moment) => left + (moment - time.begin) / (time.end - time.begin || 1) * (width - left - right), y = (value) => Math.max(top, Math.min(floor, floor - (value - low) / range * (floor - top)));
  const box = (from, to, above, below, name, opacity) => shape("rect", { x: x(from), y: above, width: x(to) - x(from), height: below - above, fill: `var(--${name})`, opacity });
  const line = (x1, y1, x2, y2, name, more = {}) => shape("line", { x1, y1, x2, y2, stroke: `var(--${name})`, ...more });
  const label = (x, y, text, name, more = {}) => shape("text", { x, y, fill: `var(--${name})`, "font-size": 12, ...more }, text);
  const axes = !wide ? [] : [label(0, 12, series.unit || "value", "muted"),
    ...ticks(low / series.factor, (low + range) / series.factor).flatMap((tick) => [line(left, y(tick * series.factor), width - right, y(tick * series.factor), "grid"), label(left - 6, y(tick * series.factor) + 4, `${tick}`, "ink", { "text-anchor": "end" })]), line(left, floor, width - right, floor, "muted"),
    ...dates(time.begin, time.end, Math.max(3, Math.floor(width / 110))).flatMap(([moment, text]) => [line(x(moment), floor, x(moment), floor + 4, "muted"),
      label(x(moment), height - 4, text, "ink", { "text-anchor": x(moment) < left + 30 ? "start" : x(moment) > width - 40 ? "end" : "middle" })])];
  const noise = levels.flatMap((level) => [box(level.from, level.to, y(level.high), y(level.low), "muted", 0.15),
    line(x(level.from), y(level.middle), x(level.to), y(level.middle), "muted", { "stroke-dasharray": "4 3" })]);
  const gaps = time.gaps.flatMap((i) => {
    const [from, to] = [time.moments[i - 1], time.moments[i]], middle = (x(from) + x(to)) / 2;
    return [box(from, to, top, floor, "grid", 0.6), ...wide && x(to) - x(from) > 70 ? [label(middle, floor - 6, `${Math.round((to - from) / DAY)} days`, "muted", { "text-anchor": "middle" })] : []];
  });
  const taken = [], within = series.changes.filter(({ run }) => run > runs[0] && run <= newest.run);
  const steps = height > 60 ? [...within].reverse().flatMap((change, i) => {
    const at = x(time.edge(change.run)), name = colours[change.verdict] ?? "muted", cause = wide && width > 700 && i === 0 && /->/.test(change.changed) ? `: ${change.changed.slice(0, 60)}` : "";
    const text = `${change.size} ${dayOf(change.run)}${cause}`, end = at > width / 2, length = 7 * text.length, from = end ? at - length : at;
    const free = taken.every(([begin, stop]) => from > stop || from + length < begin) && taken.push([from, from + length]); // no label over another
    const since = change.first < change.last ? [box(time.edge(change.first), time.edge(after(change.last)), top, floor, name, 0.12)] : [];
    return [...since, line(at, top - 4, at, floor, name, { "stroke-dasharray": "3 3" }), ...free ? [label(at, top - 6, text, name, { "text-anchor": end ? "end" : "start", "font-weight": 600 })] : []];
  }) : [];
  const [drifting, begin, end] = series.drift ?? [], from = drifting ? timeOf(drifting) : 0, since = Math.max(from, time.begin);
  const trend = drifting ? [line(x(since), y(begin + (end - begin) * (since - from) / (time.end - from || 1)), x(time.end), y(end), "ink", { "stroke-dasharray": "6 3", "stroke-width": 1.5 })] : [];
  const dot = (point, r, name) => shape("circle", { cx: x(timeOf(point.run)), cy: y(point.value), r, fill: `var(--${name})` });
  const parts = [0, ...time.gaps].map((start, i, all) => known.slice(start, all[i + 1]));
  const curves = parts.map((part) => shape("polyline", { points: part.map((point) => `${x(timeOf(point.run)).toFixed(1)},${y(point.value).toFixed(1)}`).join(" "), fill: "none", stroke: "var(--s0)", "stroke-width": wide ? 1.5 : 2 }));
  const revisions = new Map((series.head?.runs ?? []).map(([run, , , revision]) => [run, revision]));
  /** Return a run as a strip as high as the chart, which shows its line and its words under the pointer. */
  const strip = (point, i) => {
    const level = series.levels.filter(([run]) => run <= point.run).at(-1)?.[1], at = x(time.moments[i]);
    const [begin, end] = [i ? (x(time.moments[i - 1]) + at) / 2 : at - 10, i + 1 < runs.length ? (x(time.moments[i + 1]) + at) / 2 : at + 10];
    const said = `${whenOf(point.run)}: ${shown(point.value, series)}${point.n > 1 ? ` (${digits(point.low / series.factor)} to ${digits(point.high / series.factor)}, n ${point.n})` : ""}${level ? `, ${changeOf(series, level, point.value)} to its level` : ""}${revisions.get(point.run) ? `, ${revisions.get(point.run)}` : ""}`;
    return shape("a", { href: reportOf(point.run), class: "run", tabindex: -1 }, shape("rect", { x: begin, y: top, width: end - begin, height: floor - top, fill: "transparent" }),
      line(at, top, at, floor, "muted", { visibility: "hidden" }), line(at, y(point.low), at, y(point.high), "s0", { opacity: 0.45, "stroke-width": 2 }), dot(point, 3.5, "s0"),
      label(width - right, 12, said, "ink", { visibility: "hidden", "text-anchor": "end" }));
  };
  return shape("svg", { class: "line", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${series.label}, the last ${points.length} runs: ${series.text}`, ...wide ? { tabindex: 0 } : {} },
    ...gaps, ...axes, ...series.left && wide ? [box(time.edge(series.left), time.end, top, floor, "bad", 0.07)] : [], ...noise, ...curves, ...steps, ...trend,
    ...wide ? known.map(strip) : [dot(newest, 3.5, colours[series.verdict] ?? "muted")]);
}

/** Return an element with a wide chart, which is drawn again where the window or paper has another width. */
function plot(series, points) {
  const element = make("div", { className: "plot" });
  element.draw = (width) => element.replaceChildren(chartOf(series, points, width, 280, true));
  element.draw(wideEnough());
  return element;
}
/** Return an element that a small chart fills once it has its place, on a screen for a wall with letters twice as large. */
function filling(series, points) {
  const element = make("div", { className: "plot" });
  element.draw = () => {
    const scale = innerWidth > 800 ? 2 : 1;
    element.replaceChildren(chartOf(series, points, element.clientWidth / scale, element.clientHeight / scale || 96) ?? "");
  };
  return element;
}
const wideEnough = () => Math.max(300, Math.min(innerWidth - 32, 1320));
for (const [event, width] of [["resize"], ["beforeprint", 720], ["afterprint"]]) {
  addEventListener(event, () => document.querySelectorAll(".plot").forEach((element) => element.draw(width ?? wideEnough())));
}
