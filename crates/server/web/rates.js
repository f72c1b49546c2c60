// Decisions per second, by outcome: over the last minutes, and for each rule.

import { draw, make } from "./dom.js";

/** The outcomes of decisions, and their texts. */
export const OUTCOMES = [
  { name: "allowed", words: "allowed" },
  { name: "denied", words: "refused" },
  { name: "shadow", words: "would refuse (shadow)" },
  { name: "degraded", words: "decided without the store, or failed" },
];

/** For each outcome, a function that returns its count from the counters of a rule or a limit. Failed requests count as degraded. */
export const COUNTED = {
  allowed: (counter) => counter.allowed, denied: (counter) => counter.denied, shadow: (counter) => counter.shadow_denied, degraded: (counter) => counter.degraded + counter.failed,
};

/** The length of time that the picture shows. */
const SECONDS = 120;

/** The rates of rules are means over this time, so that they change slowly enough to read. */
const MEAN_S = 10;
const WIDTH = 1000;
const HEIGHT = 150;
const BASE = 126;
const TOP = 12;

export class Rates {
  constructor() {
    /** The counters of the last seconds, with their times. */
    this.counters = [];
    /** The total rates of each outcome over the last minutes, with their times. */
    this.past = [];
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "rates", role: "img", preserveAspectRatio: "none", "aria-label": "decisions per second" });
    this.legend = make("ul", { class: "legend" }, ...OUTCOMES.map(({ name, words }) => make("li", { class: name, "data-outcome": name }, make("span", {}, words), make("b", {}, "0.0"))));
    this.scale = make("p", { class: "note most" });
    this.element = make("section", { class: "panel", "aria-label": "Decisions per second" },
      make("h2", {}, "Decisions per second"), make("p", { class: "note" }, `By outcome, over the last ${SECONDS / 60} minutes. A request counts once for each rule that applies to it.`),
      this.legend, this.scale, this.svg, make("p", { class: "note axis" }, make("span", {}, `${SECONDS / 60} min ago`), make("span", {}, "now")));
  }

  /** Adds the current counters of rules and limits. Returns the recent rates of each. */
  update(counters, atMs) {
    const counts = new Map(counters.map((counter) => [counter.name, counter]));
    const last = this.counters.at(-1);
    this.counters = [...this.counters.filter((past) => atMs - past.atMs <= MEAN_S * 1000), { counts, atMs }];
    if (last) this.show(atMs, sum([...since(last, counts, atMs).values()]));
    return since(this.counters[0], counts, atMs);
  }

  /** Draws the rates. */
  show(atMs, now) {
    this.past = [...this.past.filter((one) => atMs - one.atMs < SECONDS * 1000), { atMs, ...now }];
    for (const item of this.legend.children) item.lastChild.textContent = now[item.dataset.outcome].toFixed(1);
    const most = Math.max(1, ...this.past.map((one) => one.allowed + one.denied), ...this.past.map((one) => Math.max(one.shadow, one.degraded)));
    this.scale.textContent = `top line: ${most.toFixed(0)} per second`;
    const x = (one) => WIDTH - ((atMs - one.atMs) / (SECONDS * 1000)) * WIDTH;
    const y = (rate) => BASE - (rate / most) * (BASE - TOP);
    const points = (rate) => this.past.map((one) => `${x(one).toFixed(1)},${y(rate(one)).toFixed(1)}`);
    const area = (kind, from, to) => draw("polygon", { class: kind, points: [...points(to), ...points(from).reverse()].join(" ") });
    const line = (kind) => draw("polyline", { class: kind, points: points((one) => one[kind]).join(" ") });
    this.svg.replaceChildren(
      area("allowed", () => 0, (one) => one.allowed), area("denied", (one) => one.allowed, (one) => one.allowed + one.denied), line("shadow"), line("degraded"),
      draw("line", { x1: 0, x2: WIDTH, y1: BASE, y2: BASE, class: "axis" }), draw("line", { x1: 0, x2: WIDTH, y1: TOP, y2: TOP, class: "axis" }));
    this.svg.setAttribute("aria-label", `decisions per second, at most ${most.toFixed(1)}; now ${OUTCOMES.map(({ name, words }) => `${words} ${now[name].toFixed(1)}`).join(", ")}`);
  }
}

/** Returns the rates since earlier counters, for each rule or limit that had counters then. */
function since(before, counts, atMs) {
  const seconds = (atMs - before.atMs) / 1000;
  const known = [...counts].filter(([name]) => before.counts.has(name) && seconds > 0);
  return new Map(known.map(([name, counter]) => [name, rates(counter, before.counts.get(name), seconds)]));
}

function rates(counter, before, seconds) {
  return Object.fromEntries(OUTCOMES.map(({ name }) => [name, Math.max(0, (COUNTED[name](counter) - COUNTED[name](before)) / seconds)]));
}

function sum(all) {
  return Object.fromEntries(OUTCOMES.map(({ name }) => [name, all.reduce((total, one) => total + one[name], 0)]));
}
