// The state of each algorithm, as a picture at a time. State is what the server said; only time goes on here.

import { draw, duration } from "./dom.js";

export const WIDTH = 400;
export const HEIGHT = 150;
const LEFT = 14;
const RIGHT = WIDTH - 14;
const TOP = 40;
const BASE = 116;

/** What was sent of late, beneath it. */
export const STRIP_HEIGHT = 40;
const STRIP_S = 20;

const US = 1_000_000;

/** Beyond so many, pieces are drawn as one, and dots are left out. */
const MAX_PIECES = 20;
const MAX_DOTS = 400;

/** What the server rounds, as well. */
const EPSILON = 1e-6;

/**
 * A picture of how a session stands with an algorithm, at a time: its parts, how many requests may go, and the same in
 * words. The view is the server's: `limit`, `state` and `now_us`, as of which the state is; `config` has the
 * algorithm's parameters.
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
const text = (x, y, words, anchor = "start", kind = "") => draw("text", { x, y, "text-anchor": anchor, class: kind }, words);

/** The number that decides, and what it is of. */
const headline = (number, of) => draw("text", { x: LEFT, y: 25 }, draw("tspan", { class: "big" }, number), draw("tspan", { dx: 6 }, of));

/** What comes next, opposite it. */
const aside = (words) => text(RIGHT, 25, words, "end");

/** One thing on another, as many as fit; what is free is there to be seen. */
function pile(x, width, count, limit) {
  if (limit > MAX_PIECES) {
    const height = (BASE - TOP) * Math.min(count / limit, 1);
    return [rect(x, BASE - height, width, height, "full")];
  }
  const step = (BASE - TOP) / limit;
  return Array.from({ length: limit }, (_, at) => rect(x, BASE - (at + 1) * step + 0.75, width, step - 1.5, at < count ? "full" : "free"));
}

/** The time, as a line that moves. */
const cursor = (x) => [line(x, TOP - 4, x, BASE, "now"), draw("path", { d: `M${x - 4} ${TOP - 8}h8l-4 6z`, class: "tip" })];

function fixedWindow({ limit, config, state }, nowUs) {
  const windowUs = config.windowSeconds * US;
  const startUs = Math.floor(nowUs / windowUs) * windowUs;
  const spent = state.window.start_us === startUs ? state.window.spent : 0;
  const gone = (nowUs - startUs) / windowUs;
  const left = (startUs + windowUs - nowUs) / US;
  return {
    parts: [
      headline(spent, `of ${limit} spent`),
      aside(`all is back in ${duration(left)}`),
      ...pile(LEFT, RIGHT - LEFT, spent, limit),
      ...cursor(LEFT + gone * (RIGHT - LEFT)),
      line(LEFT, BASE, RIGHT, BASE, "edge"),
      text(LEFT, BASE + 20, "the window begins"),
      text(RIGHT, BASE + 20, "and ends", "end"),
    ],
    left: Math.max(0, limit - spent),
    words: `${spent} of ${limit} spent in this window, which ends in ${duration(left)}`,
  };
}

function log({ limit, config, state }, nowUs) {
  const windowUs = config.windowSeconds * US;
  const x = (atUs) => RIGHT - ((nowUs - atUs) / windowUs) * (RIGHT - LEFT);
  const inside = state.entries.filter((atUs) => atUs > nowUs - windowUs);
  const spent = inside.length;
  const rows = 10;
  const room = (BASE - TOP) / rows;
  const dots = inside.slice(-MAX_DOTS).map((atUs, at) => circle(x(atUs), BASE - room * ((at % rows) + 0.5), 3.4, "full"));
  const oldest = inside[0];
  return {
    parts: [
      headline(spent, `of ${limit} in ${config.windowSeconds} s`),
      ...(oldest === undefined ? [] : [aside(`one leaves in ${duration((oldest + windowUs - nowUs) / US)}`)]),
      rect(LEFT, TOP, RIGHT - LEFT, BASE - TOP, "free"),
      ...dots,
      ...cursor(RIGHT),
      line(LEFT, BASE, RIGHT, BASE, "edge"),
      text(LEFT, BASE + 20, `${config.windowSeconds} s ago`),
      text(RIGHT, BASE + 20, "now", "end"),
    ],
    left: Math.max(0, limit - spent),
    words: `${spent} of ${limit} in the last ${config.windowSeconds} s`,
  };
}

function counter({ limit, config, state }, nowUs) {
  const windowUs = config.windowSeconds * US;
  const startUs = Math.floor(nowUs / windowUs) * windowUs;
  let { start_us: ofUs, current, previous } = state.pair;
  if (ofUs === startUs - windowUs) [previous, current] = [current, 0];
  else if (ofUs !== startUs) [previous, current] = [0, 0];
  const gone = (nowUs - startUs) / windowUs;
  const estimate = previous * (1 - gone) + current;
  const middle = (LEFT + RIGHT) / 2;
  const wide = middle - LEFT - 2;
  const height = (count) => (BASE - TOP) * Math.min(count / limit, 1);
  const percent = Math.round((1 - gone) * 100);
  return {
    parts: [
      headline(estimate.toFixed(1), `of ${limit} = ${previous} × ${percent}% + ${current}`),
      rect(LEFT, TOP, wide, BASE - TOP, "free"),
      rect(middle, TOP, RIGHT - middle, BASE - TOP, "free"),
      rect(LEFT, BASE - height(previous), wide, height(previous), "faded"),
      rect(LEFT + gone * wide, BASE - height(previous), wide * (1 - gone), height(previous), "full"),
      rect(middle, BASE - height(current), RIGHT - middle, height(current), "full"),
      line(LEFT, BASE - height(estimate), RIGHT, BASE - height(estimate), "limit"),
      ...cursor(middle + gone * (RIGHT - middle)),
      line(LEFT, BASE, middle - 2, BASE, "edge"),
      line(middle, BASE, RIGHT, BASE, "edge"),
      text(LEFT, BASE + 20, "the window before"),
      text(middle, BASE + 20, "this one"),
      text(RIGHT, BASE + 20, `ends in ${duration(((1 - gone) * windowUs) / US)}`, "end"),
    ],
    left: Math.max(0, Math.floor(limit - estimate + EPSILON)),
    words: `${previous} before, weighted ${percent}%, and ${current} now: an estimate of ${estimate.toFixed(1)} of ${limit}`,
  };
}

const MIDDLE = WIDTH / 2;
const BUCKET = 150;
const BUCKET_TOP = 34;
const BUCKET_BASE = 126;

/** Its walls. */
const bucket = () => draw("path", {
  d: `M${MIDDLE - BUCKET / 2} ${BUCKET_TOP}V${BUCKET_BASE - 8}q0 8 8 8H${MIDDLE + BUCKET / 2 - 8}q8 0 8-8V${BUCKET_TOP}`, class: "edge",
});

/** Something that fills it, as high as its share. */
function content(share) {
  const height = (BUCKET_BASE - BUCKET_TOP - 4) * Math.min(Math.max(share, 0), 1);
  return rect(MIDDLE - BUCKET / 2 + 3, BUCKET_BASE - 3 - height, BUCKET - 6, height, "full", 6);
}

/** Coins in rows of five. The last of them is still growing. */
function coins(count, limit) {
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
  const { limit, config } = view;
  const missing = level(view, nowUs, config.refillRate);
  const tokens = limit - missing;
  return {
    parts: [
      headline(tokens.toFixed(1), `of ${limit}`),
      ...coins(tokens, limit),
      bucket(),
      text(LEFT, BASE + 20, `+ ${config.refillRate} a second`),
      text(RIGHT, BASE + 20, missing > EPSILON ? `full in ${duration(missing / config.refillRate)}` : "full", "end"),
    ],
    left: Math.floor(tokens + EPSILON),
    words: `${tokens.toFixed(1)} of ${limit} tokens`,
  };
}

/** What is left of a level that goes down. */
function level({ state, now_us: asOfUs }, nowUs, rate) {
  return Math.max(0, state.level - ((nowUs - asOfUs) / US) * rate);
}

function leakyBucket(view, nowUs) {
  const { limit, config } = view;
  const held = level(view, nowUs, config.leakRate);
  const left = Math.floor(limit - held + EPSILON);
  if (config.mode === "shaping") return { ...queue(held, limit, config), left };
  const fallen = Math.ceil(held) - held;
  return {
    parts: [
      headline(held.toFixed(1), `of ${limit} in it`),
      content(held / limit),
      bucket(),
      ...(held > 0 ? [circle(MIDDLE, BUCKET_BASE + 6 + fallen * 14, 3.5, "full", 1 - fallen * 0.8)] : []),
      text(LEFT, BASE + 20, `− ${config.leakRate} a second`),
      text(RIGHT, BASE + 20, held > 0 ? `empty in ${duration(held / config.leakRate)}` : "empty", "end"),
    ],
    left,
    words: `${held.toFixed(1)} of ${limit} in the bucket`,
  };
}

/** Requests that wait their turn, and go one by one. The first of them has gone, and its place is held until the next. */
function queue(held, limit, { leakRate }) {
  const all = Math.ceil(held - EPSILON);
  const waiting = Math.max(0, all - 1);
  const gone = all - held;
  const gate = RIGHT - 70;
  const y = (TOP + BASE) / 2;
  const shown = Math.min(waiting, 60);
  const step = Math.min(26, (gate - LEFT - 14) / Math.max(shown, 1));
  const radius = Math.min(9, step * 0.44);
  return {
    parts: [
      headline(waiting, waiting === 1 ? "waits" : "wait"),
      aside(`one goes every ${duration(1 / leakRate)}`),
      rect(LEFT, y - 16, gate - LEFT, 32, "free", 6),
      ...(all > 0 ? [circle(gate + 12 + gone * 48, y, 9, "yes", 1 - gone)] : []),
      ...Array.from({ length: shown }, (_, at) => circle(gate - 12 - at * step, y, radius, "later")),
      line(gate, y - 22, gate, y + 22, "edge"),
      text(LEFT, BASE + 20, waiting ? `the last goes in ${duration((held - 1) / leakRate)}` : "nobody waits"),
      text(RIGHT, BASE + 20, `room for ${Math.floor(limit - held + EPSILON)} more`, "end"),
    ],
    words: `${waiting} wait their turn, room for ${Math.floor(limit - held + EPSILON)} of ${limit}`,
  };
}

/** What was sent of late, and what became of it: `sent` has `atUs` and `kinds`, a word for each request. */
export function strip(sent, nowUs) {
  const x = (atUs) => RIGHT - ((nowUs - atUs) / (STRIP_S * US)) * (RIGHT - LEFT);
  const base = STRIP_HEIGHT - 6;
  const marks = sent.flatMap(({ atUs, kinds }) => kinds.map((kind, at) => {
    const [cx, cy] = [x(atUs) - 4 - Math.floor(at / 5) * 6.5, base - 4 - (at % 5) * 6.5];
    return kind === "no" ? draw("path", { d: `M${cx - 2.2} ${cy - 2.2}l4.4 4.4m0-4.4l-4.4 4.4`, class: "no" }) : circle(cx, cy, 2.7, kind);
  }));
  const ticks = [5, 10, 15].map((second) => line(x(nowUs - second * US), base, x(nowUs - second * US), base + 4, "axis"));
  return [line(LEFT, base, RIGHT, base, "axis"), ...ticks, ...marks, text(LEFT, 12, marks.length ? "" : `what you send is here for ${STRIP_S} s`)];
}

/** Whether something that was sent then is still there to be seen. */
export const isRecent = ({ atUs }, nowUs) => nowUs - atUs < STRIP_S * US;
