// Draws the state of each algorithm at a time. The state comes from the server; only the time advances here.

import { advance, level, pairAt } from "./advance.js";
import { HATCH, cross, draw, duration, text } from "./dom.js";

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
/** The largest number of places that are drawn. */
const MAX_PLACES = 40;
/** The largest number of dots. Only the latest dots are drawn. */
const MAX_DOTS = 400;

/** Differences below this are rounding errors. */
const EPSILON = 1e-6;

/** The highest frequency of a movement. Faster movements would flicker, and are not drawn. */
const MAX_HZ = 3;

/**
 * Draws a session's state under an algorithm, at a time. Returns the parts of the picture, the number of requests that
 * are left, and the state in words. `view` comes from the server: `limit`, `state`, the open `holds`, the time `now_us` of
 * the state, and the limit that `decides`. Held units are hatched.
 */
export function picture(id, view, nowUs) {
  const atUs = Math.max(nowUs, view.now_us);
  return PICTURES[id](advance(view, atUs), atUs);
}

const PICTURES = {
  "fixed-window": fixedWindow,
  "sliding-window-log": log,
  "sliding-window-counter": counter,
  "token-bucket": tokenBucket,
  "leaky-bucket": leakyBucket,
  concurrency,
};

const fill = (kind) => (kind === "held" ? HATCH : null);
const rect = (x, y, width, height, kind, rx = 2) => draw("rect", { x, y, width: Math.max(width, 0), height: Math.max(height, 0), class: kind, rx, fill: fill(kind) });
const line = (x1, y1, x2, y2, kind) => draw("line", { x1, y1, x2, y2, class: kind });
const circle = (cx, cy, r, kind, opacity = null) => draw("circle", { cx, cy, r, class: kind, opacity, fill: fill(kind) });

/** Returns the main number of the picture, and its unit. */
const headline = (number, of) => draw("text", { x: LEFT, y: 25 }, draw("tspan", { class: "big" }, number), draw("tspan", { dx: 6 }, of));

/** Returns a text on the right side, which says what happens next. */
const aside = (words) => text(RIGHT, 25, words, "end");

/** Returns the number of held units in words, after the words `before`; an empty text without held units. */
const heldWords = (held, before = "") => (held ? `${before}${held} held` : "");

/** Returns a stack of `limit` pieces, of which `count` are full, and the next `held` ones hatched. */
function stack(x, width, count, limit, held) {
  if (limit > MAX_PIECES) return column(x, width, count / limit, held / limit);
  const step = (BASE - TOP) / limit;
  const kind = (at) => (at < count ? "full" : at < count + held ? "held" : "free");
  return Array.from({ length: limit }, (_, at) => rect(x, BASE - (at + 1) * step + 0.75, width, step - 1.5, kind(at)));
}

/** Returns a column whose parts have these shares of the height: the full part, and the hatched one above it. */
function column(x, width, share, heldShare) {
  const full = (BASE - TOP) * Math.min(share, 1);
  const held = Math.min((BASE - TOP) * heldShare, BASE - TOP - full);
  const parts = [rect(x, BASE - full, width, full, "full")];
  return held > 0 ? [...parts, rect(x, BASE - full - held, width, held, "held")] : parts;
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

function fixedWindow({ limit, decides, state, held }, nowUs) {
  const windowUs = decides.window_us;
  const startUs = Math.floor(nowUs / windowUs) * windowUs;
  const spent = state.window.start_us >= startUs ? state.window.spent : 0;
  const gone = (nowUs - startUs) / windowUs;
  const left = (startUs + windowUs - nowUs) / US;
  return {
    parts: [
      headline(spent, `of ${limit} spent${heldWords(held, " + ")}`),
      aside(`resets in ${duration(left)}`),
      ...stack(LEFT, RIGHT - LEFT, spent, limit, held),
      ...cursor(LEFT + gone * (RIGHT - LEFT), windowUs),
      line(LEFT, BASE, RIGHT, BASE, "edge"),
      text(LEFT, FOOT, "window start"),
      text(RIGHT, FOOT, "window end", "end"),
    ],
    left: Math.max(0, limit - spent - held),
    words: `${spent} of ${limit} spent${heldWords(held, " and ")} in this window, which ends in ${duration(left)}`,
  };
}

function log({ limit, decides, state, held }, nowUs) {
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
  // Held units do not age: they are at "now", from the top down.
  const still = Array.from({ length: Math.min(held, MAX_DOTS) }, (_, at) =>
    circle(RIGHT - 5 - Math.floor(at / rows) * 8, TOP + rowHeight * ((at % rows) + 0.5), 3.4, "held"));
  const oldest = inside[0];
  return {
    parts: [
      headline(spent, `of ${limit} in ${seconds}${heldWords(held, " + ")}`),
      ...(oldest === undefined ? [] : [aside(`the oldest expires in ${duration((oldest + windowUs - nowUs) / US)}`)]),
      rect(LEFT, TOP, RIGHT - LEFT, BASE - TOP, "free"),
      ...dots,
      ...still,
      ...cursor(RIGHT),
      line(LEFT, BASE, RIGHT, BASE, "edge"),
      text(LEFT, FOOT, `${seconds} ago`),
      text(RIGHT, FOOT, "now", "end"),
    ],
    left: Math.max(0, limit - spent - held),
    words: `${spent} of ${limit} in the last ${seconds}${heldWords(held, ", and ")}`,
  };
}

function counter({ limit, decides, state, held }, nowUs) {
  const windowUs = decides.window_us;
  const startUs = Math.floor(nowUs / windowUs) * windowUs;
  const { current, previous } = pairAt(state.pair, startUs, windowUs);
  const gone = (nowUs - startUs) / windowUs;
  const estimate = previous * (1 - gone) + current;
  // A part of a request does not count.
  const counted = Math.floor(estimate + EPSILON) + held;
  const middle = (LEFT + RIGHT) / 2;
  const wide = middle - LEFT - 2;
  const height = (count) => (BASE - TOP) * Math.min(count / limit, 1);
  const percent = Math.round((1 - gone) * 100);
  return {
    parts: [
      headline(counted, `of ${limit}: ${previous} × ${percent}% + ${current}${heldWords(held, " + ")} = ${(estimate + held).toFixed(1)}`),
      rect(LEFT, TOP, wide, BASE - TOP, "free"),
      rect(middle, TOP, RIGHT - middle, BASE - TOP, "free"),
      rect(LEFT, BASE - height(previous), wide, height(previous), "faded"),
      rect(LEFT + gone * wide, BASE - height(previous), wide * (1 - gone), height(previous), "full"),
      ...column(middle, RIGHT - middle, current / limit, held / limit),
      line(LEFT, BASE - height(estimate + held), RIGHT, BASE - height(estimate + held), "limit"),
      ...cursor(middle + gone * (RIGHT - middle), windowUs),
      line(LEFT, BASE, middle - 2, BASE, "edge"),
      line(middle, BASE, RIGHT, BASE, "edge"),
      text(LEFT, FOOT, "previous"),
      text(middle, FOOT, "current"),
      text(RIGHT, FOOT, `ends in ${duration(((1 - gone) * windowUs) / US)}`, "end"),
    ],
    left: Math.max(0, limit - counted),
    words: `${counted} of ${limit}: ${previous} in the previous window, weighted ${percent}%, and ${current} in the current window${heldWords(held, ", and ")}`,
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

/** Returns the content of the bucket, whose parts have these shares of the capacity: the full part, and the hatched one above it. */
function content(share, heldShare) {
  const most = BUCKET_BASE - BUCKET_TOP - 4;
  const full = most * Math.min(Math.max(share, 0), 1);
  const held = Math.min(most * heldShare, most - full);
  const part = (from, height, kind) => rect(MIDDLE - BUCKET / 2 + 3, BUCKET_BASE - 3 - from - height, BUCKET - 6, height, kind, 6);
  return held > 0 ? [part(0, full, "full"), part(full, held, "held")] : [part(0, full, "full")];
}

/** Returns the tokens in rows of five. The last one grows until it is whole. The held ones are the last of all. */
function tokenCircles(count, limit, held) {
  if (limit > MAX_PIECES) return content(count / limit, held / limit);
  const rows = Math.ceil(limit / 5);
  const step = Math.min((BUCKET_BASE - BUCKET_TOP - 6) / rows, 26);
  return Array.from({ length: limit }, (_, at) => {
    const part = Math.min(Math.max(count - at, 0), 1);
    const [x, y] = [MIDDLE + ((at % 5) - 2) * 28, BUCKET_BASE - 4 - step * (Math.floor(at / 5) + 0.5)];
    if (at >= limit - held) return circle(x, y, step / 2 - 2, "held");
    return part > 1 - EPSILON ? circle(x, y, step / 2 - 2, "full") : circle(x, y, (step / 2 - 2) * Math.sqrt(part), "faded");
  });
}

/** Returns a text with the units that are spent or held beyond the limit, if there are any. */
const debt = (taken, limit) => (taken > limit + EPSILON ? [aside(`${(taken - limit).toFixed(1)} in debt`)] : []);

function tokenBucket(view, nowUs) {
  const { limit, held, decides: { per_second: rate } } = view;
  const missing = level(view, nowUs);
  const tokens = Math.max(0, limit - missing - held);
  return {
    parts: [
      headline(tokens.toFixed(1), `of ${limit} tokens`),
      ...debt(missing + held, limit),
      ...tokenCircles(tokens, limit, held),
      bucket(),
      text(LEFT, FOOT, `+ ${short(rate)} per second`),
      text(RIGHT, FOOT, heldWords(held) || (missing > EPSILON ? `full in ${duration(missing / rate)}` : "full"), "end"),
    ],
    left: whole(limit - missing - held),
    words: `${tokens.toFixed(1)} of ${limit} tokens${heldWords(held, ", and ")}`,
  };
}

const short = (number) => String(Number(number.toPrecision(3)));

function leakyBucket(view, nowUs) {
  const { limit, held, decides: { per_second: rate, shaping } } = view;
  const filled = level(view, nowUs);
  if (shaping) return queue(filled, limit, rate);
  const fallen = rate > MAX_HZ ? 0 : Math.ceil(filled) - filled;
  return {
    parts: [
      headline(filled.toFixed(1), `of ${limit} in the bucket`),
      ...debt(filled + held, limit),
      ...content(filled / limit, held / limit),
      bucket(),
      ...(filled > 0 ? [circle(MIDDLE, BUCKET_BASE + 6 + fallen * 14, 3.5, "full", 1 - fallen * 0.8)] : []),
      text(LEFT, FOOT, `− ${short(rate)} per second`),
      text(RIGHT, FOOT, heldWords(held) || (filled > 0 ? `empty in ${duration(filled / rate)}` : "empty"), "end"),
    ],
    left: whole(limit - filled - held),
    words: `${filled.toFixed(1)} of ${limit} in the bucket${heldWords(held, ", and ")}`,
  };
}

/** Draws a row for each place. The bar of a place that is taken ends at its expiry. */
function concurrency({ limit, decides, holds, held }, nowUs) {
  const left = holds.map(({ expires_us: expiresUs }) => expiresUs - nowUs);
  const longest = Math.max(decides.hold_us, ...left);
  const count = Math.min(Math.max(limit, held), MAX_PLACES);
  const step = (BASE - TOP) / count;
  const row = (at, share, kind) => rect(LEFT, TOP + at * step + 0.75, (RIGHT - LEFT) * share, step - 1.5, kind);
  const next = left.length ? `the next expires in ${duration(left[0] / US)}` : "";
  return {
    parts: [
      headline(held, `of ${limit} places taken`),
      aside(next),
      ...Array.from({ length: count }, (_, at) => row(at, 1, "free")),
      ...left.slice(0, count).map((us, at) => row(at, us / longest, "held")),
      line(LEFT, TOP - 4, LEFT, BASE, "edge"),
      text(LEFT, FOOT, "now"),
      text(RIGHT, FOOT, `in ${duration(longest / US)}`, "end"),
    ],
    left: Math.max(0, limit - held),
    words: `${held} of ${limit} places taken${next && `, ${next}`}`,
  };
}

/** Draws requests that wait and leave one by one. The first has left already; it occupies the bucket until the next one leaves. */
function queue(filled, limit, rate) {
  const all = Math.ceil(filled - EPSILON);
  const waiting = Math.max(0, all - 1);
  const gone = rate > MAX_HZ ? 0.3 : all - filled;
  const exit = RIGHT - 70;
  const y = (TOP + BASE) / 2;
  const shown = Math.min(waiting, 60);
  const step = Math.min(26, (exit - LEFT - 14) / Math.max(shown, 1));
  const radius = Math.min(9, step * 0.44);
  const left = whole(limit - filled);
  const wait = left === 0 ? "a new request is refused" : filled > EPSILON ? `a new request waits ${duration(filled / rate)}` : "a new request leaves at once";
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

/** Draws the recent requests and their results: each element has `atUs`, and `kinds` with a word for each. `what` names the requests. */
export function strip(recent, nowUs, what) {
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
  return [line(LEFT, base, RIGHT, base, "axis"), ...ticks, text(LEFT, 14, marks.length ? `${STRIP_S} s ago` : `${what} of the last ${STRIP_S} s`), ...marks];
}

/** Whether the strip still shows these requests. */
export const isRecent = ({ atUs }, nowUs) => nowUs - atUs < STRIP_S * US;
