// Draws the state of each algorithm at a time. The state comes from the server; only the time advances here.

import { cross, draw, duration, text } from "./dom.js";

export const WIDTH = 400;
export const HEIGHT = 150;
const LEFT = 14;
const RIGHT = WIDTH - 14;
const TOP = 40;
const BASE = 116;
const FOOT = 140;

/** The height of the strip below the picture, which shows the recent requests. */
export const STRIP_HEIGHT = 40;
/** The length of time that the strip shows. */
const STRIP_S = 20;

const US = 1_000_000;

/** More pieces than these are drawn as one shape. */
const MAX_PIECES = 20;
/** The largest number of dots. Only the latest dots are drawn. */
const MAX_DOTS = 400;

/** Differences below this are rounding errors. */
const EPSILON = 1e-6;

/** The highest frequency of a movement. Faster movements would flicker, and are not drawn. */
const MAX_HZ = 3;

/**
 * Draws a session's state under an algorithm, at a time. Returns the parts of the picture, the number of requests that
 * are left, and the state in words. `view` comes from the server: `limit`, `state`, the time `now_us` of the state, and the
 * limit that `decides`.
 */
export function picture(id, view, nowUs) {
  return PICTURES[id](view, Math.max(nowUs, view.now_us));
}

const PICTURES = {
  "fixed-window": fixedWindow,
  "sliding-window-log": log,
  "sliding-window-counter": counter,
  "token-bucket": tokenBucket,
  "leaky-bucket": leakyBucket,
};

const rect = (x, y, width, height, kind, rx = 2) => draw("rect", { x, y, width: Math.max(width, 0), height: Math.max(height, 0), class: kind, rx });
const line = (x1, y1, x2, y2, kind) => draw("line", { x1, y1, x2, y2, class: kind });
const circle = (cx, cy, r, kind, opacity = null) => draw("circle", { cx, cy, r, class: kind, opacity });

/** Returns the main number of the picture, and its unit. */
const headline = (number, of) => draw("text", { x: LEFT, y: 25 }, draw("tspan", { class: "big" }, number), draw("tspan", { dx: 6 }, of));

/** Returns a text on the right side, which says what happens next. */
const aside = (words) => text(RIGHT, 25, words, "end");

/** Returns a stack of `limit` pieces, of which `count` are full. */
function stack(x, width, count, limit) {
  if (limit > MAX_PIECES) {
    const height = (BASE - TOP) * Math.min(count / limit, 1);
    return [rect(x, BASE - height, width, height, "full")];
  }
  const step = (BASE - TOP) / limit;
  return Array.from({ length: limit }, (_, at) => rect(x, BASE - (at + 1) * step + 0.75, width, step - 1.5, at < count ? "full" : "free"));
}

/** Returns the current time, as a line that moves through a window. */
const cursor = (x, windowUs = Infinity) => (windowUs < US / MAX_HZ ? [] : [line(x, TOP - 4, x, BASE, "now"), draw("path", { d: `M${x - 4} ${TOP - 8}h8l-4 6z`, class: "tip" })]);

/** Returns the number of whole requests that are left. */
const whole = (left) => Math.max(0, Math.floor(left + EPSILON));

/**
 * Returns the lowest free row at each position, from left to right, so that marks at the same position are stacked and keep
 * their rows.
 */
function rowsOf(places, size, rows) {
  const ends = Array.from({ length: rows }, () => -Infinity);
  return places.map((x) => {
    const free = ends.findIndex((end) => end <= x - size);
    const row = free === -1 ? rows - 1 : free;
    ends[row] = x;
    return row;
  });
}

function fixedWindow({ limit, decides, state }, nowUs) {
  const windowUs = decides.window_us;
  const startUs = Math.floor(nowUs / windowUs) * windowUs;
  const spent = state.window.start_us >= startUs ? state.window.spent : 0;
  const gone = (nowUs - startUs) / windowUs;
  const left = (startUs + windowUs - nowUs) / US;
  return {
    parts: [
      headline(spent, `of ${limit} spent`),
      aside(`resets in ${duration(left)}`),
      ...stack(LEFT, RIGHT - LEFT, spent, limit),
      ...cursor(LEFT + gone * (RIGHT - LEFT), windowUs),
      line(LEFT, BASE, RIGHT, BASE, "edge"),
      text(LEFT, FOOT, "window start"),
      text(RIGHT, FOOT, "window end", "end"),
    ],
    left: Math.max(0, limit - spent),
    words: `${spent} of ${limit} spent in this window, which ends in ${duration(left)}`,
  };
}

function log({ limit, decides, state }, nowUs) {
  const windowUs = decides.window_us;
  const seconds = `${windowUs / US} s`;
  const x = (atUs) => RIGHT - ((nowUs - atUs) / windowUs) * (RIGHT - LEFT);
  const inside = state.entries.filter((atUs) => atUs > nowUs - windowUs);
  const spent = inside.length;
  const rows = 10;
  const rowHeight = (BASE - TOP) / rows;
  const places = inside.slice(-MAX_DOTS).map(x);
  const levels = rowsOf(places, 7, rows);
  const dots = places.map((cx, at) => circle(cx, BASE - rowHeight * (levels[at] + 0.5), 3.4, "full"));
  const oldest = inside[0];
  return {
    parts: [
      headline(spent, `of ${limit} in ${seconds}`),
      ...(oldest === undefined ? [] : [aside(`the oldest expires in ${duration((oldest + windowUs - nowUs) / US)}`)]),
      rect(LEFT, TOP, RIGHT - LEFT, BASE - TOP, "free"),
      ...dots,
      ...cursor(RIGHT),
      line(LEFT, BASE, RIGHT, BASE, "edge"),
      text(LEFT, FOOT, `${seconds} ago`),
      text(RIGHT, FOOT, "now", "end"),
    ],
    left: Math.max(0, limit - spent),
    words: `${spent} of ${limit} in the last ${seconds}`,
  };
}

function counter({ limit, decides, state }, nowUs) {
  const windowUs = decides.window_us;
  const startUs = Math.floor(nowUs / windowUs) * windowUs;
  let { start_us: ofUs, current, previous } = state.pair;
  if (ofUs === startUs - windowUs) [previous, current] = [current, 0];
  else if (ofUs !== startUs) [previous, current] = [0, 0];
  const gone = (nowUs - startUs) / windowUs;
  const estimate = previous * (1 - gone) + current;
  // A part of a request does not count.
  const counted = Math.floor(estimate + EPSILON);
  const middle = (LEFT + RIGHT) / 2;
  const wide = middle - LEFT - 2;
  const height = (count) => (BASE - TOP) * Math.min(count / limit, 1);
  const percent = Math.round((1 - gone) * 100);
  return {
    parts: [
      headline(counted, `of ${limit}: ${previous} × ${percent}% + ${current} = ${estimate.toFixed(1)}`),
      rect(LEFT, TOP, wide, BASE - TOP, "free"),
      rect(middle, TOP, RIGHT - middle, BASE - TOP, "free"),
      rect(LEFT, BASE - height(previous), wide, height(previous), "faded"),
      rect(LEFT + gone * wide, BASE - height(previous), wide * (1 - gone), height(previous), "full"),
      rect(middle, BASE - height(current), RIGHT - middle, height(current), "full"),
      line(LEFT, BASE - height(estimate), RIGHT, BASE - height(estimate), "limit"),
      ...cursor(middle + gone * (RIGHT - middle), windowUs),
      line(LEFT, BASE, middle - 2, BASE, "edge"),
      line(middle, BASE, RIGHT, BASE, "edge"),
      text(LEFT, FOOT, "previous"),
      text(middle, FOOT, "current"),
      text(RIGHT, FOOT, `ends in ${duration(((1 - gone) * windowUs) / US)}`, "end"),
    ],
    left: Math.max(0, limit - counted),
    words: `${counted} of ${limit}: ${previous} in the previous window, weighted ${percent}%, and ${current} in the current window`,
  };
}

const MIDDLE = WIDTH / 2;
const BUCKET = 150;
const BUCKET_TOP = 34;
const BUCKET_BASE = 126;

/** Returns the walls of the bucket. */
const bucket = () => draw("path", {
  d: `M${MIDDLE - BUCKET / 2} ${BUCKET_TOP}V${BUCKET_BASE - 8}q0 8 8 8H${MIDDLE + BUCKET / 2 - 8}q8 0 8-8V${BUCKET_TOP}`, class: "edge",
});

/** Returns the content of the bucket, whose height is its share of the capacity. */
function content(share) {
  const height = (BUCKET_BASE - BUCKET_TOP - 4) * Math.min(Math.max(share, 0), 1);
  return rect(MIDDLE - BUCKET / 2 + 3, BUCKET_BASE - 3 - height, BUCKET - 6, height, "full", 6);
}

/** Returns the tokens in rows of five. The last one grows until it is whole. */
function tokenCircles(count, limit) {
  if (limit > MAX_PIECES) return [content(count / limit)];
  const rows = Math.ceil(limit / 5);
  const step = Math.min((BUCKET_BASE - BUCKET_TOP - 6) / rows, 26);
  return Array.from({ length: limit }, (_, at) => {
    const part = Math.min(Math.max(count - at, 0), 1);
    const [x, y] = [MIDDLE + ((at % 5) - 2) * 28, BUCKET_BASE - 4 - step * (Math.floor(at / 5) + 0.5)];
    return part > 1 - EPSILON ? circle(x, y, step / 2 - 2, "full") : circle(x, y, (step / 2 - 2) * Math.sqrt(part), "faded");
  });
}

function tokenBucket(view, nowUs) {
  const { limit, decides: { per_second: rate } } = view;
  const missing = level(view, nowUs);
  const tokens = Math.max(0, limit - missing);
  return {
    parts: [
      headline(tokens.toFixed(1), `of ${limit} tokens`),
      ...tokenCircles(tokens, limit),
      bucket(),
      text(LEFT, FOOT, `+ ${short(rate)} per second`),
      text(RIGHT, FOOT, missing > EPSILON ? `full in ${duration(missing / rate)}` : "full", "end"),
    ],
    left: whole(limit - missing),
    words: `${tokens.toFixed(1)} of ${limit} tokens`,
  };
}

/** Returns the level at a time. It decreases at the rate of the limit. */
function level({ state, now_us: asOfUs, decides }, nowUs) {
  return Math.max(0, state.level - ((nowUs - asOfUs) / US) * decides.per_second);
}

const short = (number) => String(Number(number.toPrecision(3)));

function leakyBucket(view, nowUs) {
  const { limit, decides: { per_second: rate, shaping } } = view;
  const held = level(view, nowUs);
  if (shaping) return queue(held, limit, rate);
  const fallen = rate > MAX_HZ ? 0 : Math.ceil(held) - held;
  return {
    parts: [
      headline(held.toFixed(1), `of ${limit} in the bucket`),
      content(held / limit),
      bucket(),
      ...(held > 0 ? [circle(MIDDLE, BUCKET_BASE + 6 + fallen * 14, 3.5, "full", 1 - fallen * 0.8)] : []),
      text(LEFT, FOOT, `− ${short(rate)} per second`),
      text(RIGHT, FOOT, held > 0 ? `empty in ${duration(held / rate)}` : "empty", "end"),
    ],
    left: whole(limit - held),
    words: `${held.toFixed(1)} of ${limit} in the bucket`,
  };
}

/** Draws requests that wait and leave one by one. The first has left already; it occupies the bucket until the next one leaves. */
function queue(held, limit, rate) {
  const all = Math.ceil(held - EPSILON);
  const waiting = Math.max(0, all - 1);
  const gone = rate > MAX_HZ ? 0.3 : all - held;
  const exit = RIGHT - 70;
  const y = (TOP + BASE) / 2;
  const shown = Math.min(waiting, 60);
  const step = Math.min(26, (exit - LEFT - 14) / Math.max(shown, 1));
  const radius = Math.min(9, step * 0.44);
  const left = whole(limit - held);
  const wait = left === 0 ? "a new request is refused" : held > EPSILON ? `a new request waits ${duration(held / rate)}` : "a new request leaves at once";
  return {
    parts: [
      headline(waiting, waiting === 1 ? "request waiting" : "requests waiting"),
      aside(`one leaves every ${duration(1 / rate)}`),
      rect(LEFT, y - 16, exit - LEFT, 32, "free", 6),
      ...(all > 0 ? [circle(exit + 12 + gone * 48, y, 9, "yes", 1 - gone)] : []),
      ...Array.from({ length: shown }, (_, at) => circle(exit - 12 - at * step, y, radius, "later")),
      line(exit, y - 22, exit, y + 22, "edge"),
      text(LEFT, FOOT, wait),
      text(RIGHT, FOOT, `space for ${left} more`, "end"),
    ],
    left,
    words: `${waiting} waiting, space for ${left} of ${limit}`,
  };
}

/** Draws the recent requests and their results: each element has `atUs`, and `kinds` with a word for each request. */
export function strip(recent, nowUs) {
  const x = (atUs) => RIGHT - 4 - ((nowUs - atUs) / (STRIP_S * US)) * (RIGHT - LEFT);
  const base = STRIP_HEIGHT - 6;
  const all = recent.flatMap(({ atUs, kinds }) => kinds.map((kind) => ({ cx: x(atUs), kind })));
  const rows = rowsOf(all.map(({ cx }) => cx), 6.5, 20);
  const marks = all.map(({ cx, kind }, at) => {
    // Stacks of five marks, side by side.
    const [markX, y] = [cx - Math.floor(rows[at] / 5) * 6.5, base - 4 - (rows[at] % 5) * 6.5];
    return kind === "no" ? cross(markX, y, 2.2) : circle(markX, y, 2.7, kind);
  });
  const ticks = [5, 10, 15].map((second) => line(x(nowUs - second * US), base, x(nowUs - second * US), base + 4, "axis"));
  return [line(LEFT, base, RIGHT, base, "axis"), ...ticks, text(LEFT, 14, marks.length ? `${STRIP_S} s ago` : `your requests of the last ${STRIP_S} s`), ...marks];
}

/** Whether the strip still shows these requests. */
export const isRecent = ({ atUs }, nowUs) => nowUs - atUs < STRIP_S * US;
