// The state of each algorithm, as a picture at a time. State is what the server said; only time goes on here.

import { draw, duration } from "./dom.js";

export const WIDTH = 400;
export const HEIGHT = 150;
const LEFT = 14;
const RIGHT = WIDTH - 14;
const BASE = 116;
const TOP = 22;

const US = 1_000_000;
const MAX_DOTS = 400;

/**
 * A picture of how a session stands with an algorithm, at a time, and what it says in words. The view is the
 * server's: `limit`, `state` and `now_us`, as of which the state is; `config` has the algorithm's parameters.
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

const rect = (x, y, width, height, kind) => draw("rect", { x, y, width: Math.max(width, 0), height: Math.max(height, 0), class: kind, rx: 2 });
const line = (x1, y1, x2, y2, kind) => draw("line", { x1, y1, x2, y2, class: kind });
const text = (x, y, words, anchor = "start", kind = "") => draw("text", { x, y, "text-anchor": anchor, class: kind }, words);

function fixedWindow({ limit, config, state }, nowUs) {
  const windowUs = config.windowSeconds * US;
  const startUs = Math.floor(nowUs / windowUs) * windowUs;
  const spent = state.window.start_us === startUs ? state.window.spent : 0;
  const height = (BASE - TOP) * Math.min(spent / limit, 1);
  const x = (atUs) => LEFT + ((atUs - startUs) / windowUs) * (RIGHT - LEFT);
  const left = (startUs + windowUs - nowUs) / US;
  return {
    parts: [
      rect(LEFT, BASE - height, RIGHT - LEFT, height, "full"),
      line(LEFT, TOP, RIGHT, TOP, "limit"),
      line(LEFT, BASE, RIGHT, BASE, "axis"),
      line(LEFT, TOP - 8, LEFT, BASE + 5, "edge"),
      line(RIGHT, TOP - 8, RIGHT, BASE + 5, "edge"),
      line(x(nowUs), TOP - 8, x(nowUs), BASE + 5, "now"),
      text(LEFT + 6, TOP + 14, `${spent} of ${limit}`, "start", "value"),
      text(LEFT, BASE + 22, "the window began"),
      text(RIGHT, BASE + 22, `all is back in ${duration(left)}`, "end"),
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
  const room = BASE - TOP - 16;
  const rows = Math.max(1, Math.min(12, Math.floor(room / 9)));
  const dots = inside.slice(-MAX_DOTS).map((atUs, at) =>
    draw("circle", { cx: x(atUs), cy: BASE - 8 - (at % rows) * 9, r: 4, class: "yes" }));
  const oldest = inside[0];
  const next = oldest === undefined ? 0 : (oldest + windowUs - nowUs) / US;
  return {
    parts: [
      line(LEFT, BASE, RIGHT, BASE, "axis"),
      line(LEFT, TOP - 8, LEFT, BASE + 5, "edge"),
      ...dots,
      line(RIGHT, TOP - 8, RIGHT, BASE + 5, "now"),
      text(LEFT + 6, TOP + 2, `${spent} of ${limit}`, "start", "value"),
      text(LEFT, BASE + 22, `${config.windowSeconds} s ago`),
      text((LEFT + RIGHT) / 2, BASE + 22, oldest !== undefined ? `the first leaves in ${duration(next)}` : "", "middle"),
      text(RIGHT, BASE + 22, "now", "end"),
    ],
    left: Math.max(0, limit - spent),
    words: `${spent} of ${limit} in the last ${config.windowSeconds} s`,
  };
}

function counter({ limit, config, state }, nowUs) {
  const windowUs = config.windowSeconds * US;
  const startUs = Math.floor(nowUs / windowUs) * windowUs;
  let { start_us, current, previous } = state.pair;
  if (start_us === startUs - windowUs) [previous, current] = [current, 0];
  else if (start_us !== startUs) [previous, current] = [0, 0];
  const gone = (nowUs - startUs) / windowUs;
  const estimate = previous * (1 - gone) + current;
  const middle = (LEFT + RIGHT) / 2;
  const wide = middle - LEFT;
  const height = (count) => (BASE - TOP) * Math.min(count / limit, 1);
  const x = middle + gone * wide;
  return {
    parts: [
      rect(LEFT, BASE - height(previous), wide, height(previous), "faded"),
      rect(LEFT + gone * wide, BASE - height(previous), wide * (1 - gone), height(previous), "full"),
      rect(middle, BASE - height(current), wide, height(current), "full"),
      line(LEFT, BASE - height(estimate), RIGHT, BASE - height(estimate), "now"),
      line(LEFT, TOP, RIGHT, TOP, "limit"),
      line(LEFT, BASE, RIGHT, BASE, "axis"),
      line(middle, TOP - 8, middle, BASE + 5, "edge"),
      line(x, TOP - 8, x, BASE + 5, "now"),
      text(LEFT + 6, TOP + 14, `${previous} × ${Math.round((1 - gone) * 100)}%`, "start", "value"),
      text(middle + 6, TOP + 14, `+ ${current} = ${estimate.toFixed(1)} of ${limit}`, "start", "value"),
      text(LEFT, BASE + 22, "the window before"),
      text(RIGHT, BASE + 22, `the next in ${duration(((1 - gone) * windowUs) / US)}`, "end"),
    ],
    left: Math.max(0, Math.floor(limit - estimate + 1e-9)),
    words: `${previous} before, weighted ${Math.round((1 - gone) * 100)}%, and ${current} now: an estimate of ${estimate.toFixed(1)} of ${limit}`,
  };
}

/** A bucket, with so much of its size in it. */
function bucket(share) {
  const [x, width] = [WIDTH / 2 - 60, 120];
  const height = (BASE - TOP) * Math.min(Math.max(share, 0), 1);
  return [
    rect(x + 2, BASE - height, width - 4, height, "full"),
    draw("path", { d: `M${x} ${TOP - 6}V${BASE}H${x + width}V${TOP - 6}`, class: "edge" }),
  ];
}

function tokenBucket(view, nowUs) {
  const { limit, config } = view;
  const missing = level(view, nowUs, config.refillRate);
  const tokens = limit - missing;
  return {
    parts: [
      ...bucket(tokens / limit),
      text(WIDTH / 2, TOP - 8, `+ ${config.refillRate}/s`, "middle"),
      text(WIDTH / 2, (TOP + BASE) / 2 + 5, `${tokens.toFixed(1)} tokens`, "middle", "value"),
      text(WIDTH / 2, BASE + 22, missing > 0.001 ? `full in ${duration(missing / config.refillRate)}` : "full", "middle"),
    ],
    left: Math.floor(tokens + 1e-9),
    words: `${tokens.toFixed(1)} of ${limit} tokens`,
  };
}

/** What is left of a level that goes down. */
function level({ state, now_us }, nowUs, rate) {
  return Math.max(0, state.level - ((nowUs - now_us) / US) * rate);
}

function leakyBucket(view, nowUs) {
  const { limit, config } = view;
  const held = level(view, nowUs, config.leakRate);
  if (config.mode === "shaping") return queue(held, limit, config);
  return {
    parts: [
      ...bucket(held / limit),
      text(WIDTH / 2, (TOP + BASE) / 2 + 5, `${held.toFixed(1)} of ${limit}`, "middle", "value"),
      draw("circle", { cx: WIDTH / 2, cy: BASE + 7, r: held > 0 ? 3 : 0, class: "yes" }),
      text(WIDTH / 2, BASE + 24, held > 0 ? `− ${config.leakRate}/s, empty in ${duration(held / config.leakRate)}` : "empty", "middle"),
    ],
    left: Math.floor(limit - held + 1e-9),
    words: `${held.toFixed(1)} of ${limit} in the bucket`,
  };
}

/** Requests that wait their turn, and go one by one. */
function queue(level, limit, { leakRate }) {
  const waiting = Math.ceil(level - 1e-9);
  const shown = Math.min(waiting, 40);
  const part = waiting - level;
  const step = Math.min(26, (RIGHT - LEFT - 50) / Math.max(shown, 1));
  const dots = Array.from({ length: shown }, (_, at) =>
    draw("circle", { cx: RIGHT - 40 - at * step + part * step, cy: (TOP + BASE) / 2, r: Math.min(9, step * 0.42), class: "later" }));
  return {
    parts: [
      line(LEFT, (TOP + BASE) / 2 + 16, RIGHT, (TOP + BASE) / 2 + 16, "axis"),
      draw("path", { d: `M${RIGHT - 24} ${TOP + 12}V${BASE - 12}`, class: "edge" }),
      ...dots,
      text(LEFT + 6, TOP + 2, `${waiting} of ${limit} wait`, "start", "value"),
      text(RIGHT, TOP + 2, `one goes every ${duration(1 / leakRate)}`, "end"),
      text(LEFT, BASE + 22, waiting ? `the last goes in ${duration(level / leakRate)}` : "nobody waits"),
    ],
    left: limit - waiting,
    words: `${waiting} of ${limit} wait their turn`,
  };
}
