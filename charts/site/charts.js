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

/** Return a chart of a series over points {run, value, low, high, n}: the noise of its levels as bands, its steps with their sizes
 * and when they may have begun, a slow drift as a line, and the span of an open step. A wide one has axes, and says under the pointer what a run measured; a click opens its report. */
function chartOf(series, points, width, height = 96, wide = false) {
  const [left, right, top, bottom] = wide ? [52, 8, 36, 22] : [4, 4, 18, 4], last = points.length - 1;
  const runs = points.map(({ run }) => run), known = points.map((point, i) => ({ ...point, i })).filter(({ value }) => value !== null);
  if (known.length < FEWEST_RUNS) return null;
  const place = (run) => Math.max(0, runs.findIndex((other) => other >= run) - 0.5), start = (i) => i in series.levels ? place(series.levels[i][0]) : last;
  const levels = series.levels.map(([, middle, low, high], i) => ({ from: start(i), to: start(i + 1), middle, low, high })).filter(({ from, to, low, high }) => to > from && low !== null && high !== null);
  const bounds = [...known.map(({ value }) => value), ...levels.flatMap(({ low, high }) => [low, high])];
  const low = Math.min(...bounds), range = Math.max(...bounds) - low || Math.abs(low) || 1, floor = height - bottom;
  const x = (i) => left + i / last * (width - left - right), y = (value) => Math.max(top, Math.min(floor, floor - (value - low) / range * (floor - top)));
  const box = (from, to, above, below, name, opacity) => shape("rect", { x: x(from), y: above, width: x(to) - x(from), height: below - above, fill: `var(--${name})`, opacity });
  const line = (x1, y1, x2, y2, name, more = {}) => shape("line", { x1, y1, x2, y2, stroke: `var(--${name})`, ...more });
  const label = (x, y, text, name, more = {}) => shape("text", { x, y, fill: `var(--${name})`, "font-size": 12, ...more }, text);
  const axes = !wide ? [] : [label(0, 12, series.unit || "value", "muted"),
    ...ticks(low / series.factor, (low + range) / series.factor).flatMap((tick) => [line(left, y(tick * series.factor), width - right, y(tick * series.factor), "grid"), label(left - 6, y(tick * series.factor) + 4, `${tick}`, "ink", { "text-anchor": "end" })]), line(left, floor, width - right, floor, "muted")];
  const count = Math.max(2, Math.floor(width / 240)), dates = wide ? [...new Set(Array.from({ length: count }, (_, k) => Math.round(k * last / (count - 1))))] : [];
  const named = dates.map((i) => label(x(i), height - 4, dayOf(runs[0]) === dayOf(runs[last]) ? whenOf(runs[i]) : dayOf(runs[i]), "ink", { "text-anchor": i === 0 ? "start" : i === last ? "end" : "middle" }));
  const noise = levels.flatMap((level) => [box(level.from, level.to, y(level.high), y(level.low), "muted", 0.15),
    line(x(level.from), y(level.middle), x(level.to), y(level.middle), "muted", { "stroke-dasharray": "4 3" })]);
  const taken = [];
  const steps = series.changes.filter(({ run }) => run > runs[0] && run <= runs[last]).reverse().flatMap((change) => {
    const at = x(place(change.run)), name = colours[change.word] ?? "muted", text = `${change.size} ${dayOf(change.run)}`, end = at > width / 2, from = end ? at - 7 * text.length : at;
    const free = taken.every((other) => Math.abs(other - from) > 140) && taken.push(from); // no label over another
    const since = change.first < change.last ? [box(place(change.first), place(change.last) + 1, top, floor, name, 0.12)] : [];
    return [...since, line(at, top - 4, at, floor, name, { "stroke-dasharray": "3 3" }), ...free ? [label(at, top - 6, text, name, { "text-anchor": end ? "end" : "start", "font-weight": 600 })] : []];
  });
  const [drifting, begin, end] = series.drift ?? [0], seen = Math.min(drifting, last);
  const trend = drifting ? [line(x(last - seen), y(end - (end - begin) * seen / drifting), x(last), y(end), "ink", { "stroke-dasharray": "6 3", "stroke-width": 1.5 })] : [];
  const newest = known.at(-1), half = (x(1) - x(0)) / 2, dot = (point, r, name) => shape("circle", { cx: x(point.i), cy: y(point.value), r, fill: `var(--${name})` });
  const revisions = new Map((series.head?.runs ?? []).map(([run, , , revision]) => [run, revision]));
  /** Return a run as a strip as high as the chart, which shows its line and its words under the pointer. */
  const strip = (point) => {
    const level = series.levels.filter(([run]) => run <= point.run).at(-1)?.[1];
    const said = `${whenOf(point.run)}: ${shown(point.value, series)}${point.n > 1 ? ` (${digits(point.low / series.factor)} to ${digits(point.high / series.factor)}, n ${point.n})` : ""}${level ? `, ${changeOf(series, level, point.value)} to its level` : ""}${revisions.get(point.run) ? `, ${revisions.get(point.run)}` : ""}`;
    return shape("a", { href: reportOf(point.run), class: "run", tabindex: -1 }, shape("rect", { x: x(point.i) - half, y: top, width: 2 * half || 20, height: floor - top, fill: "transparent" }),
      line(x(point.i), top, x(point.i), floor, "muted", { visibility: "hidden" }), line(x(point.i), y(point.low), x(point.i), y(point.high), "s0", { opacity: 0.45, "stroke-width": 2 }), dot(point, 3.5, "s0"),
      label(width - right, 12, said, "ink", { visibility: "hidden", "text-anchor": "end" }));
  };
  return shape("svg", { class: "line", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${series.name}, the last ${points.length} runs: ${series.answer}`, style: `max-width: ${1.5 * width}px`, ...wide ? { tabindex: 0 } : {} },
    ...axes, ...named, ...series.left && wide ? [box(place(series.left), last, top, floor, "bad", 0.07)] : [], ...noise,
    shape("polyline", { points: known.map((point) => `${x(point.i).toFixed(1)},${y(point.value).toFixed(1)}`).join(" "), fill: "none", stroke: "var(--s0)", "stroke-width": wide ? 1.5 : 2 }), ...steps, ...trend,
    ...wide ? known.map(strip) : [dot(newest, 3.5, colours[series.word] ?? "muted")]);
}

/** Return an element with a wide chart, which is drawn again where the window or paper has another width. */
function plot(series, points) {
  const element = make("div", { className: "plot" });
  element.draw = (width) => element.replaceChildren(chartOf(series, points, width, 280, true));
  element.draw(wideEnough());
  return element;
}
const wideEnough = () => Math.min(innerWidth, 1280) - 32;
for (const [event, width] of [["resize"], ["beforeprint", 720], ["afterprint"]]) {
  addEventListener(event, () => document.querySelectorAll(".plot").forEach((element) => element.draw(width ?? wideEnough())));
}
