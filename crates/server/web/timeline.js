// Draws the requests that each algorithm allows, on one time line.

import { ALGORITHMS } from "./algorithms.js";
import { cross, draw, make, text } from "./dom.js";
import { JOBS_ROW, holds, isOfJobs, jobRow } from "./jobs.js";
import { BINS, binned } from "./patterns.js";

/** The number of columns. Requests in the same column are stacked. */
const COLUMNS = 120;
/** The number of columns in a narrow picture. */
const FEW_COLUMNS = 60;

/** The height of the traffic row. */
const TRAFFIC = 92;
const GAP = 10;

/** The largest number of requests that the user can draw in one part of the time. */
export const MAX_DRAWN = 12;

/** Higher stacks than this are drawn as bars, because their single requests would not be visible. */
const MAX_STACK = 24;

/** Returns by how much the limit is exceeded, in words. */
export const beyond = (worst, limit) => (worst < 1.5 * limit ? `${worst - limit} above the limit` : `${(worst / limit).toFixed(1)}x the limit`);

/** Returns the proven bound in words, with the units that were charged beyond the holds. */
export const boundOf = ({ bound, excess }) => (excess ? `${bound} + ${excess}` : `${bound}`);

/** Returns the title of an algorithm, with the mode of a leaky bucket, because both modes are shown. */
export function title({ algorithm, limit }) {
  const name = ALGORITHMS.find(({ id }) => id === algorithm)?.title ?? algorithm;
  return algorithm === "leaky-bucket" ? `${name}, ${limit.includes("shaping") ? "shaping" : "policing"}` : name;
}

/** Returns the positions in a picture of this width. A narrow picture has its texts above the rows, not beside them. */
function layout(width) {
  const isNarrow = width < 640;
  const [left, right] = isNarrow ? [2, width - 2] : [200, width - 150];
  return { width, isNarrow, left, right, head: isNarrow ? 22 : 0, row: 58, columns: isNarrow ? FEW_COLUMNS : COLUMNS };
}

export class Timeline {
  /** `onstroke` is called when the user draws on the traffic: with parts of the time, and the number of requests in each. */
  constructor(onstroke) {
    this.onstroke = onstroke;
    this.svg = draw("svg", { class: "timeline", role: "img", "aria-label": "requests that each algorithm allows" });
    this.box = make("div", {}, this.svg);
    this.element = make("div", { class: "panel" }, this.box);
    this.svg.addEventListener("pointerdown", (event) => this.stroke(event, null));
    this.svg.addEventListener("pointermove", (event) => (event.buttons ? this.stroke(event, this.last) : null));
    this.last = null;
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  /** Shows how each algorithm decided the traffic. `units` has what each request reserves and settles; null if nothing. */
  show(rate, times, comparisons, units) {
    this.shown = { rate, times, comparisons, units };
    const most = (one) => (isOfJobs(one) ? "most at the same time" : `most ${holds(one) ? "units charged " : ""}in any ${rate.seconds} s of this traffic`);
    this.svg.setAttribute("aria-label", comparisons.map((one) => `${title(one)}: ${one.allowed} of ${times.length} allowed, ${most(one)} ${one.worst}, proven bound ${boundOf(one)}`).join("; "));
    this.draw();
  }

  /** Continues a stroke from its last position, so that a quick stroke leaves no gaps. */
  stroke(event, last) {
    this.last = null;
    if (!this.shown) return;
    const box = this.svg.getBoundingClientRect();
    const { left, right, head } = layout(this.width);
    const [x, y] = [event.clientX - box.left, event.clientY - box.top - head];
    if (x < left || x >= right || y < 0 || y > TRAFFIC) return;
    event.preventDefault();
    const bin = Math.floor(((x - left) / (right - left)) * BINS);
    const count = Math.round(((TRAFFIC - GAP - y) / (TRAFFIC - 2 * GAP)) * MAX_DRAWN);
    this.last = { bin, count: Math.min(Math.max(count, 0), MAX_DRAWN) };
    this.onstroke(between(last ?? this.last, this.last));
  }

  draw() {
    const width = Math.floor(this.box.clientWidth);
    if (!this.shown || width === 0) return;
    this.width = width;
    const { rate, times, comparisons, units } = this.shown;
    const at = layout(width);
    const x = (ms) => at.left + (ms / (rate.span * 1000)) * (at.right - at.left);
    const place = { ...at, x, rate, times, units, columnMs: (rate.span * 1000) / at.columns };
    let height = at.head + TRAFFIC;
    const rows = comparisons.flatMap((one) => {
      const [top, high] = [height, holds(one) ? JOBS_ROW : at.row];
      height = top + high + at.head + GAP;
      return row({ ...place, row: high }, one, top);
    });
    for (const [name, value] of Object.entries({ width, height: height + 26, viewBox: `0 0 ${width} ${height + 26}` })) this.svg.setAttribute(name, value);
    this.svg.replaceChildren(...grid(place, height), ...traffic(place), ...rows);
  }
}

/** Returns all parts of the time between two ends of a stroke, with interpolated counts. */
function between(from, to) {
  const steps = Math.abs(to.bin - from.bin);
  return Array.from({ length: steps + 1 }, (_, at) => {
    const share = steps === 0 ? 1 : at / steps;
    return [from.bin + Math.sign(to.bin - from.bin) * at, Math.round(from.count + (to.count - from.count) * share)];
  });
}

/** Returns lines at the beginning and in the middle of each window. */
function grid({ x, rate, isNarrow }, height) {
  return Array.from({ length: 7 }, (_, half) => half * 0.5 * rate.seconds).flatMap((second, half) => {
    const [at, isWindow] = [x(second * 1000), half % 2 === 0];
    const mark = draw("line", { x1: at, x2: at, y1: 6, y2: height, class: isWindow ? "turn" : "axis" });
    const isWritten = isWindow || !isNarrow;
    return isWritten ? [mark, text(at, height + 18, `${second} s`, half === 0 && isNarrow ? "start" : half === 6 && isNarrow ? "end" : "middle")] : [mark];
  });
}

/** Returns the traffic row. */
function traffic(place) {
  const { x, rate, times, head, left, right } = place;
  const wide = (rate.span * 1000) / BINS;
  const counts = binned(times, rate.span);
  const most = Math.max(MAX_DRAWN, ...counts);
  const base = head + TRAFFIC - GAP;
  const bars = counts.flatMap((count, bin) => {
    const height = (count / most) * (TRAFFIC - 2 * GAP);
    return count === 0 ? [] : [draw("rect", { x: x(bin * wide) + 0.5, y: base - height, width: x(wide) - left - 1, height, class: "full", rx: 1.5 })];
  });
  const ground = draw("rect", { x: left, y: head + GAP, width: right - left, height: TRAFFIC - 2 * GAP, class: "ground", rx: 4 });
  const words = `${times.length} requests`;
  return [ground, ...bars, ...label(place, 0, TRAFFIC, { name: "Traffic", beneath: words, beside: words })];
}

/** Returns a row's name and its result: below the name, or beside it in a narrow picture. */
function label({ head, isNarrow, left, right }, top, high, { name, beneath, lowest = "", beside, kind = "" }) {
  if (isNarrow) return [text(left, top + 16, name, "start", "value"), text(right, top + 16, beside, "end", kind)];
  const middle = top + head + high / 2;
  const first = lowest ? middle - 12 : middle - 3;
  return [text(14, first, name, "start", "value"), text(14, first + 18, beneath), ...(lowest ? [text(14, first + 36, lowest)] : [])];
}

/** Returns the row of an algorithm. Allowed requests are at the bottom of each stack, refused requests above them. */
function row(place, one, top) {
  const { x, rate, times, columns, columnMs, right, row: high, head } = place;
  const from = top + head;
  const base = from + high;
  const isOver = one.worst > rate.limit;
  const beneath = isOver ? beyond(one.worst, rate.limit) : "most in this traffic";
  if (isOfJobs(one)) return [...jobRow(place, one, from), ...results(place, one, top, { worst: `${one.worst} at once`, beneath })];
  const kind = isOver ? "over" : "";
  if (holds(one)) return [...jobRow(place, one, from), ...results(place, one, top, { worst: `${one.worst} units in ${rate.seconds} s`, beneath, kind })];
  const marks = stacked(one, times, columns, columnMs);
  const most = Math.max(1, ...marks.map(({ floor }) => floor + 1));
  const step = Math.min(5.6, high / most);
  const radius = Math.min(2.6, step * 0.62, (right - place.left) / columns / 2);
  const parts = [draw("line", { x1: place.left, x2: right, y1: base, y2: base, class: "axis" })];
  if (one.worst > 0) {
    const start = x(one.worst_from_ms);
    const width = Math.min(x(one.worst_from_ms + rate.seconds * 1000), right) - start;
    parts.push(draw("rect", { x: start, y: from, width, height: high, class: isOver ? "worst over" : "worst", rx: 4 }));
  }
  parts.push(...(most > MAX_STACK ? bars(place, marks, base, high / most) : marks.map(({ column, floor, kind }) => {
    const [cx, cy] = [x((column + 0.5) * columnMs), base - (floor + 0.5) * step];
    return kind === "no" ? cross(cx, cy, radius) : draw("circle", { cx, cy, r: radius, class: kind });
  })));
  return [...parts, ...results(place, one, top, { worst: `${one.worst} in ${rate.seconds} s`, beneath, kind })];
}

/** Returns the title and the result of an algorithm, on both sides of its row. */
function results(place, one, top, { worst, beneath, kind = "" }) {
  const { rate, times, right, row: high, head, isNarrow } = place;
  // Delayed requests can leave after the end of the picture.
  const later = one.goes_ms.filter((ms) => ms !== null && ms > rate.span * 1000).length;
  const result = `${one.allowed} of ${times.length} allowed`;
  const lowest = later ? `${later} leave after the end` : "";
  const parts = label(place, top, high, { name: title(one), beneath: result, lowest, beside: worst, kind });
  if (isNarrow) return parts;
  const middle = top + head + high / 2;
  return [...parts, text(right + 14, middle - 12, worst, "start", `value ${kind}`), text(right + 14, middle + 6, beneath, "start", kind), text(right + 14, middle + 24, `bound: ${boundOf(one)}`)];
}

/** Returns the stacks as bars: in each column one bar for each kind of result. */
function bars({ x, columnMs, left }, marks, base, step) {
  const wide = x(columnMs) - left - 0.5;
  const columns = new Map();
  for (const { column, kind } of marks) {
    const counts = columns.get(column) ?? { yes: 0, later: 0, no: 0 };
    columns.set(column, { ...counts, [kind]: counts[kind] + 1 });
  }
  return [...columns].flatMap(([column, counts]) => {
    let floor = 0;
    return Object.entries(counts).filter(([, count]) => count > 0).map(([kind, count]) => {
      floor += count;
      return draw("rect", { x: x(column * columnMs), y: base - floor * step, width: wide, height: count * step, class: kind === "no" ? "refused" : kind });
    });
  });
}

/** Returns the column and the position in its stack of each request. The time is when it left, or when it was refused. */
function stacked({ goes_ms: goes }, times, columns, columnMs) {
  const floors = new Map();
  const all = goes.map((ms, at) => ({
    at: (ms ?? times[at]) / columnMs, kind: ms === null ? "no" : ms > times[at] ? "later" : "yes",
  }));
  return [...all.filter(({ kind }) => kind !== "no"), ...all.filter(({ kind }) => kind === "no")].flatMap(({ at, kind }) => {
    // Requests after the end are not drawn; requests at the end are.
    if (at > columns) return [];
    const column = Math.min(Math.floor(at), columns - 1);
    const floor = floors.get(column) ?? 0;
    floors.set(column, floor + 1);
    return [{ column, floor, kind }];
  });
}
