// What each algorithm lets go, on one time line.

import { ALGORITHMS } from "./algorithms.js";
import { cross, draw, make, text } from "./dom.js";
import { BINS, binned } from "./patterns.js";

/** Requests that come together are drawn on each other, in so many columns: fewer where there is little room. */
const COLUMNS = 120;
const FEW_COLUMNS = 60;

const TRAFFIC = 92;
const GAP = 10;

/** The most that can be drawn in one part of the time. */
export const MAX_DRAWN = 12;

/** Higher piles than that are drawn as bars: their requests could not be told apart. */
const MAX_PILE = 24;

/** How much is too much. */
export const excess = (worst, limit) => (worst < 1.5 * limit ? `${worst - limit} more than ${limit}` : `${(worst / limit).toFixed(1)}x of ${limit}`);

/** A leaky bucket comes once in each mode. */
export function title({ algorithm, limit }) {
  const own = ALGORITHMS.find(({ id }) => id === algorithm)?.title ?? algorithm;
  return algorithm === "leaky-bucket" ? `${own}, ${limit.includes("shaping") ? "shaping" : "policing"}` : own;
}

/** Where things are, in a picture so wide: beside a narrow one there is no room for words. */
function layout(width) {
  const isNarrow = width < 640;
  const [left, right] = isNarrow ? [2, width - 2] : [200, width - 150];
  return { width, isNarrow, left, right, head: isNarrow ? 22 : 0, row: 58, columns: isNarrow ? FEW_COLUMNS : COLUMNS };
}

export class Timeline {
  /** Whoever draws on the traffic is told to `onstroke`: the parts of the time, each with how many come in it. */
  constructor(onstroke) {
    this.onstroke = onstroke;
    this.svg = draw("svg", { class: "timeline", role: "img", "aria-label": "what each lets go" });
    this.box = make("div", {}, this.svg);
    this.element = make("div", { class: "panel" }, this.box);
    this.svg.addEventListener("pointerdown", (event) => this.stroke(event, null));
    this.svg.addEventListener("pointermove", (event) => (event.buttons ? this.stroke(event, this.last) : null));
    this.last = null;
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  show(own, times, compared) {
    this.shown = { own, times, compared };
    this.svg.setAttribute("aria-label", compared.map((one) => `${title(one)}: ${one.allowed} of ${times.length} allowed, most in this trace ${one.worst} in ${own.seconds} s, proven bound ${one.bound}`).join("; "));
    this.draw();
  }

  /** From where the stroke was before, so that a quick one leaves no gaps. */
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
    const { own, times, compared } = this.shown;
    const at = layout(width);
    const x = (ms) => at.left + (ms / (own.span * 1000)) * (at.right - at.left);
    const place = { ...at, x, own, times, columnMs: (own.span * 1000) / at.columns };
    const height = at.head + TRAFFIC + compared.length * (at.row + at.head + GAP);
    const rows = compared.flatMap((one, index) => row(place, one, at.head + TRAFFIC + index * (at.row + at.head + GAP)));
    for (const [name, value] of Object.entries({ width, height: height + 26, viewBox: `0 0 ${width} ${height + 26}` })) this.svg.setAttribute(name, value);
    this.svg.replaceChildren(...grid(place, height), ...traffic(place), ...rows);
  }
}

/** All parts of the time from one to another, with counts between theirs. */
function between(from, to) {
  const steps = Math.abs(to.bin - from.bin);
  return Array.from({ length: steps + 1 }, (_, at) => {
    const share = steps === 0 ? 1 : at / steps;
    return [from.bin + Math.sign(to.bin - from.bin) * at, Math.round(from.count + (to.count - from.count) * share)];
  });
}

/** The beginning of every window, and its halves. */
function grid({ x, own, isNarrow }, height) {
  return Array.from({ length: 7 }, (_, half) => half * 0.5 * own.seconds).flatMap((second, half) => {
    const [at, isWindow] = [x(second * 1000), half % 2 === 0];
    const mark = draw("line", { x1: at, x2: at, y1: 6, y2: height, class: isWindow ? "turn" : "axis" });
    const isWritten = isWindow || !isNarrow;
    return isWritten ? [mark, text(at, height + 18, `${second} s`, half === 0 && isNarrow ? "start" : half === 6 && isNarrow ? "end" : "middle")] : [mark];
  });
}

function traffic(place) {
  const { x, own, times, head, left, right } = place;
  const wide = (own.span * 1000) / BINS;
  const counts = binned(times, own.span);
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

/** A row's name, and what it came to: beneath the name, or beside it where there is no room. */
function label({ head, isNarrow, left, right }, top, high, { name, beneath, beside, kind = "" }) {
  if (isNarrow) return [text(left, top + 16, name, "start", "value"), text(right, top + 16, beside, "end", kind)];
  const middle = top + head + high / 2;
  return [text(14, middle - 3, name, "start", "value"), text(14, middle + 15, beneath)];
}

/** Those that went stand on each other; those that were refused stand on them. */
function row(place, one, top) {
  const { x, own, times, columns, columnMs, right, row: high, head, isNarrow } = place;
  const from = top + head;
  const base = from + high;
  const marks = piled(one, times, columns, columnMs);
  const most = Math.max(1, ...marks.map(({ floor }) => floor + 1));
  const step = Math.min(5.6, high / most);
  const radius = Math.min(2.6, step * 0.62, (right - place.left) / columns / 2);
  const isOver = one.worst > own.limit;
  const parts = [draw("line", { x1: place.left, x2: right, y1: base, y2: base, class: "axis" })];
  if (one.worst > 0) {
    const start = x(one.worst_from_ms);
    const width = Math.min(x(one.worst_from_ms + own.seconds * 1000), right) - start;
    parts.push(draw("rect", { x: start, y: from, width, height: high, class: isOver ? "worst over" : "worst", rx: 4 }));
  }
  parts.push(...(most > MAX_PILE ? bars(place, marks, base, high / most) : marks.map(({ column, floor, kind }) => {
    const [cx, cy] = [x((column + 0.5) * columnMs), base - (floor + 0.5) * step];
    return kind === "no" ? cross(cx, cy, radius) : draw("circle", { cx, cy, r: radius, class: kind });
  })));
  const later = one.goes_ms.filter((ms) => ms !== null && ms > own.span * 1000).length;
  const went = `${one.allowed} of ${times.length} go${later ? `, ${later} after that` : ""}`;
  const worst = `${one.worst} in ${own.seconds} s`;
  const kind = isOver ? "over" : "";
  parts.push(...label(place, top, high, { name: title(one), beneath: went, beside: worst, kind }));
  if (isNarrow) return parts;
  const middle = from + high / 2;
  const beneath = isOver ? excess(one.worst, own.limit) : "most in this trace";
  return [...parts, text(right + 14, middle - 12, worst, "start", `value ${kind}`), text(right + 14, middle + 6, beneath, "start", kind), text(right + 14, middle + 24, `bound: ${one.bound}`)];
}

/** The same as bars, for piles whose requests could not be told apart: a column's kinds on each other. */
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

/** Each request in the column of the time when it went, or came and was refused; above those that are there already. */
function piled({ goes_ms: goes }, times, columns, columnMs) {
  const floors = new Map();
  const all = goes.map((ms, at) => ({
    at: (ms ?? times[at]) / columnMs, kind: ms === null ? "no" : ms > times[at] ? "later" : "yes",
  }));
  return [...all.filter(({ kind }) => kind !== "no"), ...all.filter(({ kind }) => kind === "no")].flatMap(({ at, kind }) => {
    // After the end there is nothing to see; at the end there is.
    if (at > columns) return [];
    const column = Math.min(Math.floor(at), columns - 1);
    const floor = floors.get(column) ?? 0;
    floors.set(column, floor + 1);
    return [{ column, floor, kind }];
  });
}
