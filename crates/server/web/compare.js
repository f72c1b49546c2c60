// Compare: the same traffic through all algorithms, on one time line.

import { ALGORITHMS } from "./algorithms.js";
import { ask, reasonOf } from "./api.js";
import { draw, make } from "./dom.js";

const SECONDS = 30;
const WINDOW_MS = 10_000;
const MAX_REQUESTS = 600;

const WIDTH = 1000;
const LEFT = 210;
const RIGHT = WIDTH - 130;
const ROW = 52;
const TRAFFIC = 84;

/** What can be sent, as times in milliseconds. */
const PATTERNS = {
  boundary: { title: "A burst across a window's boundary", times: () => [...burst(9_500, 10, 40), ...burst(10_100, 10, 40)] },
  steady: { title: "A steady rate, 2 a second", times: () => every(500) },
  bursts: { title: "Bursts of 12, every 5 s", times: () => [0, 5, 10, 15, 20, 25].flatMap((at) => burst(at * 1000 + 200, 12, 30)) },
  drawn: { title: "Drawn or typed", times: null },
};

const burst = (atMs, count, stepMs) => Array.from({ length: count }, (_, at) => atMs + at * stepMs);
const every = (stepMs) => Array.from({ length: (SECONDS * 1000) / stepMs }, (_, at) => at * stepMs);

const x = (ms) => LEFT + (ms / (SECONDS * 1000)) * (RIGHT - LEFT);

/** Builds the view into a place. */
export function compare(place) {
  const view = new Compare();
  place.replaceChildren(view.element);
  view.send();
}

class Compare {
  constructor() {
    /** Requests in every half second: what is drawn. */
    this.drawn = Array.from({ length: SECONDS * 2 }, () => 0);
    this.asked = 0;
    this.select = make("select", { id: "pattern", onchange: () => this.choose() },
      ...Object.entries(PATTERNS).map(([name, { title }]) => make("option", { value: name }, title)));
    this.typed = make("input", {
      id: "typed", type: "text", spellcheck: "false", autocomplete: "off", placeholder: "0.2*10 3 4.5*3", "aria-describedby": "typed-help",
      onchange: () => this.type(),
    });
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${TRAFFIC + ROW * (ALGORITHMS.length + 1) + 40}`, class: "picture", role: "img", "aria-label": "admitted requests" });
    this.svg.addEventListener("pointerdown", (event) => this.stroke(event));
    this.svg.addEventListener("pointermove", (event) => event.buttons && this.stroke(event));
    this.table = make("tbody", {});
    this.element = make("div", {},
      make("div", { class: "lead" },
        make("p", {}, "One stream of requests, sent to each algorithm: all allow 10 in 10 s. See what each lets go, and how much at worst in any 10 s.")),
      make("div", { class: "parameters" },
        make("label", { for: "pattern" }, "traffic", this.select),
        make("label", { for: "typed" }, "or type it", this.typed),
        make("span", { class: "note", id: "typed-help" }, "Seconds, 0 to 30; *10 is ten at once. Or draw on the first row of the picture.")),
      this.problem,
      make("div", { class: "scroll" }, this.svg),
      make("div", { class: "scroll" }, make("table", {},
        make("caption", { class: "note" }, "The same in numbers"),
        make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "algorithm"), make("th", { scope: "col", class: "number" }, "allowed"),
          make("th", { scope: "col", class: "number" }, "most in any 10 s"), make("th", { scope: "col" }, "its limit"))),
        this.table)));
    this.times = PATTERNS.boundary.times();
  }

  choose() {
    const { times } = PATTERNS[this.select.value];
    this.times = times ? times() : drawnTimes(this.drawn);
    this.complain(null);
    this.send();
  }

  type() {
    const times = parse(this.typed.value);
    if (typeof times === "string") return this.complain(times);
    this.complain(null);
    this.select.value = "drawn";
    this.times = times;
    this.send();
  }

  /** A stroke on the first row says how many requests come in that half second. */
  stroke(event) {
    const box = this.svg.getBoundingClientRect();
    const [atX, atY] = [((event.clientX - box.left) / box.width) * WIDTH, ((event.clientY - box.top) / box.height) * this.svg.viewBox.baseVal.height];
    if (atX < LEFT || atX >= RIGHT || atY > TRAFFIC) return;
    event.preventDefault();
    const slot = Math.floor(((atX - LEFT) / (RIGHT - LEFT)) * this.drawn.length);
    this.drawn[slot] = Math.max(0, Math.round(((TRAFFIC - 20 - atY) / (TRAFFIC - 30)) * 10));
    this.select.value = "drawn";
    this.times = drawnTimes(this.drawn);
    this.complain(null);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.send(), 60);
  }

  complain(problem) {
    this.problem.hidden = problem === null;
    this.problem.textContent = problem ?? "";
    this.typed.setAttribute("aria-invalid", String(problem !== null));
  }

  async send() {
    const asked = ++this.asked;
    const times = this.times;
    try {
      const answer = await ask("POST", "/api/rate-limit/compare", { at_ms: times, window_ms: WINDOW_MS });
      if (!answer.ok) return this.complain(reasonOf(answer));
      // A later question was asked meanwhile.
      if (asked !== this.asked) return;
      this.show(times, answer.json);
    } catch (error) {
      this.complain(error.message);
    }
  }

  show(times, compared) {
    const parts = [...grid(compared.length), ...traffic(times)];
    compared.forEach((own, at) => parts.push(...row(own, TRAFFIC + at * ROW, times)));
    this.svg.replaceChildren(...parts);
    this.svg.setAttribute("aria-label", compared.map((own) => `${title(own)}: ${own.allowed} of ${times.length} allowed, ${own.worst} at most in 10 s`).join("; "));
    this.table.replaceChildren(...compared.map((own) => make("tr", { "data-algorithm": own.algorithm },
      make("th", { scope: "row" }, title(own)), make("td", { class: "number" }, `${own.allowed} of ${times.length}`),
      make("td", { class: "number" }, String(own.worst)), make("td", {}, make("code", {}, own.limit)))));
  }
}

/** A leaky bucket comes once in each mode. */
function title({ algorithm, limit }) {
  const own = ALGORITHMS.find(({ id }) => id === algorithm)?.title ?? algorithm;
  return algorithm === "leaky-bucket" ? `${own}, ${limit.includes("shaping") ? "shaping" : "policing"}` : own;
}

function drawnTimes(drawn) {
  return drawn.flatMap((count, at) => burst(at * 500, count, Math.floor(500 / Math.max(count, 1))));
}

/** `0.2*10 3`: the times in milliseconds, or what is wrong. */
export function parse(text) {
  const times = [];
  for (const word of text.split(/[\s,]+/).filter(Boolean)) {
    const [, at, count = "1"] = /^(\d+(?:\.\d+)?)(?:[*x×](\d+))?$/.exec(word) ?? [];
    if (at === undefined) return `${word.slice(0, 20)} is no time; write seconds, such as 1.5 or 1.5*10`;
    if (Number(at) > SECONDS) return `${at} is too late; use 0 to ${SECONDS}`;
    if (times.length + Number(count) > MAX_REQUESTS) return `more than ${MAX_REQUESTS} requests; send fewer`;
    for (let own = 0; own < Number(count); own += 1) times.push(Math.round(Number(at) * 1000));
  }
  return times.sort((one, other) => one - other);
}

function grid(rows) {
  const height = TRAFFIC + rows * ROW;
  const parts = [];
  for (let second = 0; second <= SECONDS; second += 5) {
    const isWindow = second % 10 === 0;
    parts.push(draw("line", { x1: x(second * 1000), x2: x(second * 1000), y1: 8, y2: height + 6, class: isWindow ? "edge" : "axis" }));
    parts.push(draw("text", { x: x(second * 1000), y: height + 24, "text-anchor": "middle" }, `${second} s`));
  }
  return parts;
}

function traffic(times) {
  const slots = new Map();
  for (const ms of times) slots.set(Math.floor(ms / 500), (slots.get(Math.floor(ms / 500)) ?? 0) + 1);
  const most = Math.max(10, ...slots.values());
  const wide = (RIGHT - LEFT) / (SECONDS * 2);
  const bars = [...slots].map(([slot, count]) => {
    const height = (count / most) * (TRAFFIC - 30);
    return draw("rect", { x: LEFT + slot * wide + 1, y: TRAFFIC - 20 - height, width: wide - 2, height, class: "full", rx: 2 });
  });
  return [draw("text", { x: 12, y: TRAFFIC - 30, class: "value" }, "traffic"), draw("text", { x: 12, y: TRAFFIC - 14 }, `${times.length} requests`),
    draw("line", { x1: LEFT, x2: RIGHT, y1: TRAFFIC - 20, y2: TRAFFIC - 20, class: "axis" }), ...bars];
}

function row(own, top, times) {
  const middle = top + ROW / 2;
  const parts = [draw("text", { x: 12, y: middle - 2, class: "value" }, title(own)), draw("text", { x: 12, y: middle + 14 }, `${own.allowed} of ${times.length} go`)];
  if (own.worst > 0) {
    const from = x(own.worst_from_ms);
    const width = Math.min(x(own.worst_from_ms + WINDOW_MS), RIGHT) - from;
    parts.push(draw("rect", { x: from, y: top + 6, width, height: ROW - 12, class: "faded", rx: 4 }));
  }
  own.goes_ms.forEach((goes, at) => {
    if (goes === null) parts.push(cross(x(times[at]), middle + 9));
    else if (goes <= SECONDS * 1000) parts.push(draw("circle", { cx: x(goes), cy: middle - 5, r: 4, class: goes > times[at] ? "later" : "yes" }));
  });
  parts.push(draw("text", { x: RIGHT + 12, y: middle - 2, class: "value" }, `${own.worst} in 10 s`), draw("text", { x: RIGHT + 12, y: middle + 14 }, "at worst"));
  return parts;
}

const cross = (cx, cy) => draw("path", { d: `M${cx - 3} ${cy - 3}l6 6m0-6l-6 6`, class: "no" });
