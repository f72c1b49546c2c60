// Draws a row of requests that hold something until they end: a job of a concurrency limit has a bar as long as it holds its
// place; a request that reserves units has a bar as long and as high as it holds them, and at its end the units that it settled.

import { HATCH, cross, draw } from "./dom.js";

/** The height of a row. */
export const JOBS_ROW = 84;
/** The part of the row for the bars. Refused requests are above them. */
const SHARE = 0.65;
/** Lower bars than this are not hatched, because the hatching would not be visible. */
const MIN_HATCHED = 3;

/** The width of the mark at the end of a bar. */
const END = 4;

/** Whether a comparison is that of a concurrency limit. */
export const isOfJobs = ({ algorithm }) => algorithm === "concurrency";

/** Whether the requests of a comparison hold a place or units until they end. */
export const holds = ({ holds_ms: holdsMs }) => holdsMs !== null;

/** Returns a row of requests that hold something, whose top is at `from`. `units` has what each reserves and settles. */
export function jobRow({ x, rate, times, columns, columnMs, left, right, row: high, units }, one, from) {
  const base = from + high;
  const { reserve, settle } = isOfJobs(one) ? { reserve: 1, settle: 0 } : units;
  const most = isOfJobs(one) ? one.bound : Math.floor(rate.limit / reserve);
  const step = (high * SHARE) / Math.max(most, 1);
  const jobs = lanes(one).flatMap(({ startMs, endMs, lane }) => {
    const [start, end] = [x(startMs), Math.min(x(endMs), right)];
    const size = { x: start, y: base - (lane + 1) * step, width: Math.max(end - start - 0.5, 0.5), height: step > MIN_HATCHED ? step - 1 : step };
    const bar = draw("rect", step > MIN_HATCHED ? { ...size, class: "job held", fill: HATCH, rx: 1.5 } : { ...size, class: "job full" });
    if (settle === 0 || x(endMs) > right) return [bar];
    const used = size.height * Math.min(settle / reserve, 1);
    return [bar, draw("rect", { x: end - 0.5 - Math.min(END, size.width), y: size.y + size.height - used, width: Math.min(END, size.width), height: used, class: settle > reserve ? "settled over" : "settled" })];
  });
  const refused = times.filter((_, at) => one.goes_ms[at] === null).map((ms) => Math.min(Math.floor(ms / columnMs), columns - 1));
  const floors = new Map();
  const stacked = refused.map((column) => {
    const floor = floors.get(column) ?? 0;
    floors.set(column, floor + 1);
    return { column, floor };
  });
  const rise = Math.min(5.6, (high * (1 - SHARE)) / Math.max(1, ...floors.values()));
  const radius = Math.min(2.6, Math.max(rise * 0.62, 0.8), (right - left) / columns / 2);
  const crosses = stacked.map(({ column, floor }) => cross(x((column + 0.5) * columnMs), base - high * SHARE - (floor + 0.5) * rise, radius));
  return [draw("line", { x1: left, x2: right, y1: base, y2: base, class: "axis" }), ...jobs, ...crosses];
}

/** Returns the start, the end and the lane of each bar: the lowest lane that is free. */
function lanes({ goes_ms: goes, holds_ms: holdsMs }) {
  const ends = [];
  return goes.filter((ms) => ms !== null).map((startMs) => {
    const free = ends.findIndex((endMs) => endMs <= startMs);
    const lane = free === -1 ? ends.length : free;
    ends[lane] = startMs + holdsMs;
    return { startMs, endMs: ends[lane], lane };
  });
}
