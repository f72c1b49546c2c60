// Decisions a second, by outcome: over the last minutes, and of each rule.

import { draw, make } from "./dom.js";

export const OUTCOMES = [
  { name: "allowed", words: "allowed" },
  { name: "denied", words: "refused" },
  { name: "shadow", words: "shadow refused" },
  { name: "degraded", words: "without the store" },
];

export const COUNTED = {
  allowed: (own) => own.allowed, denied: (own) => own.denied, shadow: (own) => own.shadow_denied, degraded: (own) => own.degraded + own.failed,
};

const SECONDS = 120;

/** Over so long rates of rules are told, so that they can be read. */
const MEAN_S = 10;
const WIDTH = 1000;
const HEIGHT = 150;
const BASE = 126;
const TOP = 12;

export class Rates {
  constructor() {
    /** What was counted, of late, and when. */
    this.heards = [];
    /** What there was of each outcome in all, a second, and when. */
    this.past = [];
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "rates", role: "img", preserveAspectRatio: "none", "aria-label": "decisions a second" });
    this.legend = make("ul", { class: "legend" }, ...OUTCOMES.map(({ name, words }) => make("li", { class: name, "data-outcome": name }, make("span", {}, words), make("b", {}, "0.0"))));
    this.most = make("p", { class: "note most" });
    this.element = make("section", { class: "panel", "aria-label": "Decisions a second" },
      make("h2", {}, "Decisions a second"), make("p", { class: "note" }, `By outcome, over ${SECONDS / 60} minutes. A request counts once for every rule that applies to it.`),
      this.legend, this.most, this.svg, make("p", { class: "note axis" }, make("span", {}, `${SECONDS / 60} min ago`), make("span", {}, "now")));
  }

  /** Takes what rules and limits have counted by now. The answer is how many a second that is for each, of late. */
  heard(deciders, atMs) {
    const counts = new Map(deciders.map((own) => [own.name, own]));
    const last = this.heards.at(-1);
    this.heards = [...this.heards.filter((own) => atMs - own.atMs <= MEAN_S * 1000), { counts, atMs }];
    if (last) this.show(atMs, sum([...since(last, counts, atMs).values()]));
    return since(this.heards[0], counts, atMs);
  }

  show(atMs, now) {
    this.past = [...this.past.filter((own) => atMs - own.atMs < SECONDS * 1000), { atMs, ...now }];
    for (const item of this.legend.children) item.lastChild.textContent = now[item.dataset.outcome].toFixed(1);
    const most = Math.max(1, ...this.past.map((own) => own.allowed + own.denied), ...this.past.map((own) => Math.max(own.shadow, own.degraded)));
    this.most.textContent = `top: ${most.toFixed(0)} a second`;
    const x = (own) => WIDTH - ((atMs - own.atMs) / (SECONDS * 1000)) * WIDTH;
    const y = (rate) => BASE - (rate / most) * (BASE - TOP);
    const points = (rate) => this.past.map((own) => `${x(own).toFixed(1)},${y(rate(own)).toFixed(1)}`);
    const area = (kind, from, to) => draw("polygon", { class: kind, points: [...points(to), ...points(from).reverse()].join(" ") });
    const line = (kind) => draw("polyline", { class: kind, points: points((own) => own[kind]).join(" ") });
    this.svg.replaceChildren(
      area("allowed", () => 0, (own) => own.allowed), area("denied", (own) => own.allowed, (own) => own.allowed + own.denied), line("shadow"), line("degraded"),
      draw("line", { x1: 0, x2: WIDTH, y1: BASE, y2: BASE, class: "axis" }), draw("line", { x1: 0, x2: WIDTH, y1: TOP, y2: TOP, class: "axis" }));
    this.svg.setAttribute("aria-label", `decisions a second, at most ${most.toFixed(1)}; now ${OUTCOMES.map(({ name, words }) => `${words} ${now[name].toFixed(1)}`).join(", ")}`);
  }
}

/** How many a second of each that there was before. */
function since(before, counts, atMs) {
  const seconds = (atMs - before.atMs) / 1000;
  const known = [...counts].filter(([name]) => before.counts.has(name) && seconds > 0);
  return new Map(known.map(([name, own]) => [name, rates(own, before.counts.get(name), seconds)]));
}

function rates(own, old, seconds) {
  return Object.fromEntries(OUTCOMES.map(({ name }) => [name, Math.max(0, (COUNTED[name](own) - COUNTED[name](old)) / seconds)]));
}

function sum(all) {
  return Object.fromEntries(OUTCOMES.map(({ name }) => [name, all.reduce((total, own) => total + own[name], 0)]));
}
