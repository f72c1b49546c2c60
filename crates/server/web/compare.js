// Compare: the same traffic through all algorithms, on one time line.

import { ask, onPresence, reasonOf } from "./api.js";
import { make } from "./dom.js";
import { BINS, binned, burst, parse, patterns } from "./patterns.js";
import { MAX_DRAWN, Timeline, excess, title } from "./timeline.js";

const DRAWN = "drawn";

const LEGEND = [["yes", "goes at once"], ["later", "goes later"], ["no", "is refused"], ["worst", "where most go"], ["over", "where too many go"]];

/** Builds the view into a place. */
export function compare(place) {
  const view = new Compare();
  place.replaceChildren(view.element);
  view.choose();
}

class Compare {
  constructor() {
    /** How many requests come in each part of the time: what is drawn. */
    this.drawn = Array.from({ length: BINS }, () => 0);
    this.times = [];
    this.select = make("select", { id: "pattern", onchange: () => this.choose() });
    this.limit = number("compare-limit", 1, 100, 10, () => this.choose());
    this.seconds = number("compare-seconds", 1, 60, 10, () => this.choose());
    this.typed = make("input", {
      id: "typed", type: "text", spellcheck: "false", autocomplete: "off", placeholder: "0.2*10 3 4.5*3", "aria-describedby": "typed-help",
      onchange: () => this.type(),
    });
    this.help = make("p", { class: "note", id: "typed-help" });
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.timeline = new Timeline((bins) => this.stroke(bins));
    this.clear = make("button", { type: "button", class: "quiet", onclick: () => this.empty() }, "Clear");
    this.summary = make("p", { class: "summary", role: "status", "data-field": "summary" });
    this.table = make("tbody", {});
    this.worstOf = make("th", { scope: "col", class: "number" });
    this.boundOf = make("th", { scope: "col", class: "number" });
    this.element = make("div", { class: "stack" },
      make("div", { class: "lead" }, make("p", {}, "One stream of requests through each algorithm, decided by this server's engine at the times shown: see the most that each let go in this trace, and the proven bound that no traffic exceeds.")),
      make("div", { class: "parameters" },
        make("label", { for: "pattern" }, "traffic", this.select),
        make("label", { for: "typed" }, "or type it", this.typed),
        make("label", { for: "compare-limit" }, "all allow", this.limit),
        make("label", { for: "compare-seconds" }, "every … seconds", this.seconds), this.clear),
      // The summary beneath: above, it would move what is drawn on.
      this.help, this.problem, this.timeline.element,
      make("ul", { class: "legend" }, ...LEGEND.map(([kind, words]) => make("li", { class: kind }, words))), this.summary,
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The same in numbers" }, make("table", {},
        make("caption", {}, "The same in numbers"),
        make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "algorithm"), make("th", { scope: "col", class: "number" }, "allowed"),
          this.worstOf, this.boundOf, make("th", { scope: "col" }, "its limit"))),
        this.table)));
    onPresence((isThere) => isThere && this.hasFailed && this.choose());
    this.offer();
  }

  /** What all allow; null if that is nothing that can be sent. */
  rate() {
    for (const input of [this.limit, this.seconds]) {
      const isGood = input.value.trim() !== "" && input.checkValidity();
      input.setAttribute("aria-invalid", String(!isGood));
      if (!isGood) {
        this.complain(`use a whole number, ${input.min} to ${input.max}`);
        return null;
      }
    }
    return { limit: Number(this.limit.value), seconds: Number(this.seconds.value) };
  }

  /** The patterns there are for it, and how long they take. */
  offer() {
    const rate = this.rate();
    if (!rate) return null;
    const chosen = this.select.value || "boundary";
    const offered = patterns(rate);
    const option = (name, words) => make("option", { value: name, selected: name === chosen }, words);
    this.select.replaceChildren(...Object.entries(offered).map(([name, { words }]) => option(name, words)), option(DRAWN, "drawn or typed"));
    const span = 3 * rate.seconds;
    this.help.textContent = `Type seconds, 0 to ${span}; *10 is ten at once. Or draw on the row of the traffic.`;
    return { ...rate, span, offered };
  }

  choose() {
    const own = this.offer();
    if (!own) return;
    this.complain(null);
    if (this.select.value !== DRAWN) return this.send(own, own.offered[this.select.value].times);
    if (this.typed.value.trim() !== "") return this.type();
    this.send(own, this.drawnTimes(own));
  }

  type() {
    const own = this.offer();
    if (!own) return;
    const times = parse(this.typed.value, own.span);
    if (typeof times === "string") return this.complain(times, this.typed);
    this.complain(null);
    this.select.value = DRAWN;
    this.send(own, times);
  }

  /** A stroke says how many requests come in parts of the time. It begins on what is there. */
  stroke(bins) {
    const own = this.offer();
    if (!own) return;
    if (this.select.value !== DRAWN || this.typed.value !== "") this.drawn = binned(this.times, own.span).map((count) => Math.min(count, MAX_DRAWN));
    for (const [bin, count] of bins) this.drawn[bin] = count;
    this.draw(own);
  }

  /** Nothing, to draw on. */
  empty() {
    const own = this.offer();
    if (!own) return;
    this.drawn.fill(0);
    this.draw(own);
  }

  draw(own) {
    this.typed.value = "";
    this.select.value = DRAWN;
    this.complain(null);
    this.send(own, this.drawnTimes(own));
  }

  drawnTimes({ span }) {
    const wide = (span * 1000) / BINS;
    return this.drawn.flatMap((count, bin) => burst(Math.round(bin * wide), count, Math.floor(wide / Math.max(count, 1))));
  }

  complain(problem, input = null) {
    this.problem.hidden = problem === null;
    this.problem.textContent = problem ?? "";
    this.typed.setAttribute("aria-invalid", String(input === this.typed));
  }

  /** One question at a time: what is drawn meanwhile is asked when it was answered. */
  async send(own, times) {
    this.times = times;
    this.next = { own, times };
    if (this.isAsking) return;
    [this.isAsking, this.hasFailed] = [true, false];
    try {
      while (this.next) {
        const now = this.next;
        this.next = null;
        await this.ask(now);
      }
    } catch (error) {
      this.hasFailed = true;
      this.complain(error.message);
    } finally {
      this.isAsking = false;
    }
  }

  async ask({ own, times }) {
    const window = { maxRequests: own.limit, windowSeconds: own.seconds };
    const rate = own.limit / own.seconds;
    const config = {
      "fixed-window": window, "sliding-window-log": window, "sliding-window-counter": window,
      "token-bucket": { maxTokens: own.limit, refillRate: rate }, "leaky-bucket": { capacity: own.limit, leakRate: rate },
    };
    const answer = await ask("POST", "/api/rate-limit/compare", { config, at_ms: times, window_ms: own.seconds * 1000 });
    if (!answer.ok) return this.complain(reasonOf(answer));
    this.show(own, times, answer.json);
  }

  show(own, times, compared) {
    this.timeline.show(own, times, compared);
    this.worstOf.textContent = `most in this trace, any ${own.seconds} s`;
    this.boundOf.textContent = `proven bound, any ${own.seconds} s`;
    const over = compared.filter(({ worst }) => worst > own.limit);
    this.summary.textContent = over.length === 0 ? `In this trace none lets more than ${own.limit} go in any ${own.seconds} s.`
      : over.map((one) => `${title(one)} lets ${one.worst} go in ${own.seconds} s, ${excess(one.worst, own.limit)}.`).join(" ");
    this.table.replaceChildren(...compared.map((one) => make("tr", { "data-algorithm": one.algorithm },
      make("th", { scope: "row" }, title(one)), make("td", { class: "number" }, `${one.allowed} of ${times.length}`),
      make("td", { class: one.worst > own.limit ? "number over" : "number" }, String(one.worst)),
      make("td", { class: "number" }, String(one.bound)), make("td", {}, make("code", {}, one.limit)))));
  }
}

function number(id, min, max, value, onchange) {
  return make("input", { id, type: "number", min, max, step: 1, value, inputmode: "numeric", required: true, class: "narrow", onchange });
}
