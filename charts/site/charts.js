// Charts of series over runs, one point a run. They are SVG in the colours of the page, so that paper and dark screens have them too.
"use strict";

const FEWEST_RUNS = 3; // of a chart, as of a level: words say as much of fewer
const DAY = 864e5;
const GAP = 4; // usual distances of two runs without one that are a gap
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function shape(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  element.append(...children);
  return element;
}

/** Return round numbers between two, about five. */
function ticks(low, high) {
  const rough = (high - low) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(low / step);
  const count = Math.floor(high / step) - first + 1;
  return Array.from({ length: count }, (_, i) => +((first + i) * step).toPrecision(6)); // 0.3 and not 0.30000000000000004
}

/** Return about so many moments between two with their texts: hours of a day, days, or starts of months. */
function dates(begin, end, count) {
  const days = (end - begin) / DAY;
  if (days > 70) return monthStarts(begin, end, count);
  if (days < 2) {
    const hours = Math.ceil(24 * days / count || 1);
    return multiples(DAY / 24 * hours, begin, end).map((moment) => [moment, new Date(moment).toISOString().slice(11, 16)]);
  }
  const width = [1, 2, 7, 14].find((some) => days / some <= count) ?? 28;
  return multiples(DAY * width, begin, end).map((moment) => {
    const date = new Date(moment);
    return [moment, `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`];
  });
}

/** Return about so many starts of months between two moments with their names, of which the first and each January have a year. */
function monthStarts(begin, end, count) {
  const first = new Date(begin);
  const months = (end - begin) / DAY / 30.4;
  const step = [1, 2, 3, 6, 12].find((some) => months / some <= count) ?? 24;
  const starts = [];
  for (let month = Math.ceil((first.getUTCMonth() + 1) / step) * step; ; month += step) {
    const moment = Date.UTC(first.getUTCFullYear(), month); // a month beyond 11 is one of a later year
    if (moment > end) return starts;
    const date = new Date(moment);
    const name = MONTHS[date.getUTCMonth()];
    const hasYear = !starts.length || date.getUTCMonth() === 0;
    starts.push([moment, hasYear ? `${name} ${date.getUTCFullYear()}` : name]);
  }
}

function multiples(step, begin, end) {
  const all = [];
  for (let value = Math.ceil(begin / step) * step; value <= end; value += step) all.push(value);
  return all;
}

/** Return what an axis of time needs of some runs: their moments, those between two, and the gaps without a run. */
function timeline(runs) {
  const moments = runs.map(timeOf);
  const begin = moments[0];
  const end = moments.at(-1);
  const distances = moments.slice(1).map((moment, i) => moment - moments[i]);
  const usual = [...distances].sort((a, b) => a - b)[distances.length >> 1];
  const widest = Math.max(GAP * usual, (end - begin) / 30); // a narrower gap would be no wider than a point
  return {
    runs, moments, begin, end,
    /** The positions of the runs before which there is a gap. */
    gaps: distances.flatMap((distance, i) => distance > widest ? [i + 1] : []),
    /** Return the moment between a run and the one before it. */
    edge(run) {
      const i = runs.findIndex((other) => other >= run);
      if (i < 0) return end;
      return i === 0 ? begin : (moments[i - 1] + moments[i]) / 2;
    },
    /** Return the end of a run: the moment between it and the one after it. */
    endOf(run) {
      const next = runs.find((other) => other > run);
      return next ? this.edge(next) : end;
    },
  };
}

/** What a chart is drawn on: it knows where moments and values stand, and the colours by their names. */
class Plane {
  constructor(time, values, width, height, wide) {
    Object.assign(this, { time, width, height, wide });
    this.hasLabels = height > 60;
    this.left = wide ? 52 : 4;
    this.right = width - (wide ? 8 : 4);
    this.top = wide ? 36 : this.hasLabels ? 18 : 4;
    this.floor = height - (wide ? 22 : 4);
    this.low = Math.min(...values);
    this.range = Math.max(...values) - this.low || Math.abs(this.low) || 1; // of equal values too
  }

  x(moment) {
    const { begin, end } = this.time;
    return this.left + (moment - begin) / (end - begin || 1) * (this.right - this.left);
  }

  y(value) {
    const at = this.floor - (value - this.low) / this.range * (this.floor - this.top);
    return Math.max(this.top, Math.min(this.floor, at));
  }

  box(from, to, above, below, name, opacity) {
    return shape("rect", { x: this.x(from), y: above, width: this.x(to) - this.x(from), height: below - above, fill: `var(--${name})`, opacity });
  }

  /** Return a box as high as the chart. */
  span(from, to, name, opacity) {
    return this.box(from, to, this.top, this.floor, name, opacity);
  }

  line(x1, y1, x2, y2, name, more = {}) {
    return shape("line", { x1, y1, x2, y2, stroke: `var(--${name})`, ...more });
  }

  label(x, y, text, name, more = {}) {
    return shape("text", { x, y, fill: `var(--${name})`, "font-size": 12, ...more }, text);
  }

  dot({ run, value }, name) {
    return shape("circle", { cx: this.x(timeOf(run)), cy: this.y(value), r: 3.5, fill: `var(--${name})` });
  }
}

/** Return a chart of a series over points {run, value, low, high, n}: the noise of its levels as bands, its steps with their sizes
 * and when they may have begun, a slow drift as a line, and the span of an open step. A wide one has axes, and says under the pointer what a run measured; a click opens its report. */
function chartOf(series, points, width, height = 96, wide = false) {
  const measured = points.filter(({ value }) => value !== null);
  if (measured.length < FEWEST_RUNS) return null;
  const time = timeline(measured.map(({ run }) => run));
  const levels = levelsWithin(series, time);
  const values = [...measured.map(({ value }) => value), ...levels.flatMap(({ low, high }) => [low, high])];
  const plane = new Plane(time, values, width, height, wide);
  const label = `${series.label}, the last ${points.length} runs: ${series.text}`;
  const focus = wide ? { tabindex: 0 } : {};
  return shape("svg", { class: "line", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, ...focus },
    ...gapsOn(plane),
    ...wide ? axesOn(plane, series) : [],
    ...wide && series.left ? [plane.span(time.edge(series.left), time.end, "bad", 0.07)] : [],
    ...levels.flatMap((level) => noiseOn(plane, level)),
    ...curvesOn(plane, measured),
    ...plane.hasLabels ? stepsOn(plane, series) : [],
    ...driftOn(plane, series),
    ...wide ? stripsOn(plane, series, measured) : [plane.dot(measured.at(-1), colours[series.verdict] ?? "muted")]);
}

/** Return the levels of a series with a known noise between the first and the last moment. */
function levelsWithin(series, time) {
  const levels = series.levels.map(([run, middle, low, high], i) => {
    const next = series.levels[i + 1];
    return { from: time.edge(run), to: next ? time.edge(next[0]) : time.end, middle, low, high };
  });
  return levels.filter(({ from, to, low, high }) => to > from && low !== null && high !== null);
}

function gapsOn(plane) {
  return plane.time.gaps.flatMap((i) => {
    const from = plane.time.moments[i - 1];
    const to = plane.time.moments[i];
    const band = plane.span(from, to, "grid", 0.6);
    const [begin, end] = [plane.x(from), plane.x(to)];
    if (!plane.wide || end - begin <= 70) return [band]; // too narrow for its words
    return [band, plane.label((begin + end) / 2, plane.floor - 6, `${Math.round((to - from) / DAY)} days`, "muted", { "text-anchor": "middle" })];
  });
}

function axesOn(plane, { factor, unit }) {
  const { time, low, range, left, right, floor, width, height } = plane;
  const numbers = ticks(low / factor, (low + range) / factor).flatMap((tick) => {
    const y = plane.y(tick * factor);
    return [plane.line(left, y, right, y, "grid"), plane.label(left - 6, y + 4, `${tick}`, "ink", { "text-anchor": "end" })];
  });
  const days = dates(time.begin, time.end, Math.max(3, Math.floor(width / 110))).flatMap(([moment, text]) => {
    const x = plane.x(moment);
    const anchor = x < left + 30 ? "start" : x > width - 40 ? "end" : "middle"; // within the chart
    return [plane.line(x, floor, x, floor + 4, "muted"), plane.label(x, height - 4, text, "ink", { "text-anchor": anchor })];
  });
  return [plane.label(0, 12, unit || "value", "muted"), ...numbers, plane.line(left, floor, right, floor, "muted"), ...days];
}

function noiseOn(plane, { from, to, middle, low, high }) {
  const y = plane.y(middle);
  return [plane.box(from, to, plane.y(high), plane.y(low), "muted", 0.15), plane.line(plane.x(from), y, plane.x(to), y, "muted", { "stroke-dasharray": "4 3" })];
}

/** Return the line of the values, which no gap has. */
function curvesOn(plane, measured) {
  const starts = [0, ...plane.time.gaps];
  return starts.map((start, i) => {
    const part = measured.slice(start, starts[i + 1]);
    const points = part.map(({ run, value }) => `${plane.x(timeOf(run)).toFixed(1)},${plane.y(value).toFixed(1)}`);
    return shape("polyline", { points: points.join(" "), fill: "none", stroke: "var(--s0)", "stroke-width": plane.wide ? 1.5 : 2 });
  });
}

/** Return the steps, newest first, each with its size where no label of a newer one stands. */
function stepsOn(plane, series) {
  const { time, width, top, floor } = plane;
  const changes = series.changes.filter(({ run }) => run > time.runs[0] && run <= time.runs.at(-1)).reverse();
  const taken = [];
  return changes.flatMap((change, i) => {
    const tone = colours[change.verdict] ?? "muted";
    const at = plane.x(time.edge(change.run));
    const parts = [plane.line(at, top - 4, at, floor, tone, { "stroke-dasharray": "3 3" })];
    if (change.first < change.last) parts.unshift(plane.span(time.edge(change.first), time.endOf(change.last), tone, 0.12));
    const hasCause = i === 0 && plane.wide && width > 700 && change.changed.includes("->");
    const text = `${change.size} ${dayOf(change.run)}${hasCause ? `: ${change.changed.slice(0, 60)}` : ""}`;
    const length = 7 * text.length;
    const isLate = at > width / 2; // its label stands before it
    const begin = isLate ? at - length : at;
    const end = begin + length;
    if (taken.every((other) => begin > other.end || end < other.begin)) {
      taken.push({ begin, end });
      parts.push(plane.label(at, top - 6, text, tone, { "text-anchor": isLate ? "end" : "start", "font-weight": 600 }));
    }
    return parts;
  });
}

function driftOn(plane, { drift }) {
  if (!drift) return [];
  const [run, begin, end] = drift;
  const from = timeOf(run);
  const to = plane.time.end;
  const since = Math.max(from, plane.time.begin); // it may have begun before the chart does
  const value = begin + (end - begin) * (since - from) / (to - from || 1);
  return [plane.line(plane.x(since), plane.y(value), plane.x(to), plane.y(end), "ink", { "stroke-dasharray": "6 3", "stroke-width": 1.5 })];
}

/** Return each run as a strip as high as the chart, which shows its line and its words under the pointer. */
function stripsOn(plane, series, measured) {
  const { top, floor, right } = plane;
  const revisions = new Map((series.head?.runs ?? []).map(([run, , , revision]) => [run, revision]));
  const places = plane.time.moments.map((moment) => plane.x(moment));
  return measured.map((point, i) => {
    const at = places[i];
    const begin = i ? (places[i - 1] + at) / 2 : at - 10;
    const end = i + 1 < places.length ? (at + places[i + 1]) / 2 : at + 10;
    return shape("a", { href: reportOf(point.run), class: "run", tabindex: -1 },
      shape("rect", { x: begin, y: top, width: end - begin, height: floor - top, fill: "transparent" }),
      plane.line(at, top, at, floor, "muted", { visibility: "hidden" }),
      plane.line(at, plane.y(point.low), at, plane.y(point.high), "s0", { opacity: 0.45, "stroke-width": 2 }),
      plane.dot(point, "s0"),
      plane.label(right, 12, pointText(series, point, revisions.get(point.run)), "ink", { visibility: "hidden", "text-anchor": "end" }));
  });
}

/** Return what a run measured: its value, the spread of its samples, the change to its level, and the revision. */
function pointText(series, point, revision) {
  const { run, value, n } = point;
  const spread = n > 1 ? ` (${spreadOf(point, series)})` : "";
  const parts = [`${whenOf(run)}: ${shown(value, series)}${spread}`];
  const level = series.levels.filter(([start]) => start <= run).at(-1)?.[1];
  if (level) parts.push(`${changeOf(series, level, value)} to its level`);
  if (revision) parts.push(revision);
  return parts.join(", ");
}

/** Return an element with a wide chart, which is drawn again where the window or paper has another width. */
function plot(series, points) {
  const element = make("div", { className: "plot" });
  element.draw = (width) => element.replaceChildren(chartOf(series, points, width, 280, true));
  element.draw(plotWidth());
  return element;
}

/** Return an element that a small chart fills once it has its place, on a screen for a wall with letters twice as large. */
function filling(series, points) {
  const element = make("div", { className: "plot" });
  element.draw = () => {
    const scale = innerWidth > 800 ? 2 : 1;
    const chart = chartOf(series, points, element.clientWidth / scale, element.clientHeight / scale || 96);
    element.replaceChildren(chart ?? "");
  };
  return element;
}

const PAPER = 720;
const plotWidth = () => Math.max(300, Math.min(innerWidth - 32, 1320));
const drawAgain = (width) => document.querySelectorAll(".plot").forEach((element) => element.draw(width));
addEventListener("resize", () => drawAgain(plotWidth()));
addEventListener("beforeprint", () => drawAgain(PAPER));
addEventListener("afterprint", () => drawAgain(plotWidth()));
