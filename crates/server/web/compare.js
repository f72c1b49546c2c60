// The Compare view: the same traffic under all algorithms, on one time line.

import { onReachability, reasonOf, send } from "./api.js";
import { make } from "./dom.js";
import { isOfJobs } from "./jobs.js";
import { BINS, binned, burst, parse, patterns } from "./patterns.js";
import { MAX_DRAWN, Timeline, beyond, boundOf, title } from "./timeline.js";

/** The option for traffic that is drawn or typed. */
const DRAWN = "drawn";

/** The longest time that a job can take, in seconds. */
const MAX_JOB_S = 60;

/** The most units that a request can reserve or settle. */
const MAX_UNITS = 100;

const LEGEND = [["yes", "allowed at once"], ["later", "allowed after a delay"], ["no", "refused"], ["held", "a job that holds its place"], ["worst", "the window with the most requests"], ["over", "the same, if it exceeds the limit"]];
/** The legend of requests that reserve units. */
const HELD_LEGEND = [["no", "refused"], ["held", "units that a request holds, or a job that holds its place"], ["settled", "units that it settled"], ["settled over", "the same, if it settled more than it held"]];

/** The sentence about the row that is missing when requests reserve units. */
const NO_SHAPING = "Units of a shaping bucket cannot be held, so it is left out.";

/** Adds the view to `place`. */
export function compare(place) {
  const view = new Compare();
  place.replaceChildren(view.element);
  view.choose();
}

class Compare {
  constructor() {
    /** The drawn traffic: the number of requests in each part of the time. */
    this.drawn = Array.from({ length: BINS }, () => 0);
    /** The times of the requests that are shown. */
    this.times = [];
    this.select = make("select", { id: "pattern", onchange: () => this.choose() });
    this.limit = number("compare-limit", 1, 100, 10, () => this.choose());
    this.seconds = number("compare-seconds", 1, 60, 10, () => this.choose());
    this.takes = number("compare-takes", 1, MAX_JOB_S, 2, () => this.choose());
    this.reserves = make("input", { id: "compare-reserves", type: "checkbox", role: "switch", onchange: () => this.choose() });
    this.reserve = number("compare-reserve", 1, MAX_UNITS, 3, () => this.choose());
    this.settle = number("compare-settle", 0, MAX_UNITS, 2, () => this.choose());
    this.units = make("div", { class: "parameters", role: "group", "aria-label": "Units of each request" },
      make("label", { for: "compare-reserve" }, "reserve (units)", this.reserve),
      make("label", { for: "compare-settle" }, "settle (units)", this.settle));
    this.typed = make("input", {
      id: "typed", type: "text", spellcheck: "false", autocomplete: "off", placeholder: "0.2*10 3 4.5*3", "aria-describedby": "typed-help",
      onchange: () => this.type(),
    });
    this.help = make("p", { class: "note", id: "typed-help" });
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.timeline = new Timeline((bins) => this.stroke(bins));
    this.clear = make("button", { type: "button", class: "quiet", onclick: () => this.removeAll() }, "Clear");
    this.summary = make("p", { class: "summary", role: "status", "data-field": "summary" });
    [this.limitWords, this.takesWords] = [make("span", {}), make("span", {})];
    this.legend = make("ul", { class: "legend" });
    this.table = make("tbody", {});
    this.worstHeader = make("th", { scope: "col", class: "number" });
    this.boundHeader = make("th", { scope: "col", class: "number" });
    this.element = make("div", { class: "stack" },
      make("div", { class: "lead" }, make("p", {}, "The same requests under each algorithm, decided by this server as if they came at the times shown. For each algorithm you see which requests it allows, the most that pass within one window of this traffic, and a proven bound that no traffic can exceed. A concurrency limit bounds something else: each request is a job that takes some time, and the limit is how many run at once. Requests can also reserve units of every limit, and settle the units that they used when they end.")),
      make("div", { class: "parameters" },
        make("label", { for: "pattern" }, "traffic", this.select),
        make("label", { for: "typed" }, "or type times", this.typed),
        make("label", { for: "compare-limit" }, this.limitWords, this.limit),
        make("label", { for: "compare-seconds" }, "window (s)", this.seconds),
        make("label", { for: "compare-takes" }, this.takesWords, this.takes), this.clear),
      make("div", { class: "parameters" },
        make("label", { class: "switch", for: "compare-reserves" }, this.reserves, "requests reserve units, and settle them when they end"), this.units),
      // The summary is below the picture: above, its changing height would move the picture while the user draws.
      this.help, this.problem, this.timeline.element,
      this.legend, this.summary,
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The same in numbers" }, make("table", {},
        make("caption", {}, "The same in numbers"),
        make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "algorithm"), make("th", { scope: "col", class: "number" }, "allowed"),
          this.worstHeader, this.boundHeader, make("th", { scope: "col" }, "limit"))),
        this.table)));
    onReachability((isReachable) => isReachable && this.hasFailed && this.choose());
    this.listPatterns();
  }

  /** Returns the limit of all algorithms; null if a field is invalid. */
  rate() {
    const { checked } = this.reserves;
    this.units.hidden = !checked;
    this.limitWords.textContent = checked ? "limit (units)" : "limit (requests)";
    this.takesWords.textContent = checked ? "a request takes (s)" : "a job takes (s)";
    for (const input of [this.limit, this.seconds, this.takes, ...(checked ? [this.reserve, this.settle] : [])]) {
      const isGood = input.value.trim() !== "" && input.checkValidity();
      input.setAttribute("aria-invalid", String(!isGood));
      if (!isGood) {
        this.showProblem(`enter a whole number, ${input.min} to ${input.max}`);
        return null;
      }
    }
    const units = checked ? { reserve: Number(this.reserve.value), settle: Number(this.settle.value) } : null;
    return { limit: Number(this.limit.value), seconds: Number(this.seconds.value), takes: Number(this.takes.value), units };
  }

  /** Lists the patterns for the limit. Returns the limit, the patterns and their length; null if a field is invalid. */
  listPatterns() {
    const rate = this.rate();
    if (!rate) return null;
    const chosen = this.select.value || "boundary";
    const all = patterns(rate);
    const option = (name, words) => make("option", { value: name, selected: name === chosen }, words);
    this.select.replaceChildren(...Object.entries(all).map(([name, { words }]) => option(name, words)), option(DRAWN, "drawn or typed"));
    const span = 3 * rate.seconds;
    this.help.textContent = `Type times in seconds, 0 to ${span}, with spaces between them; 2*10 means ten requests at 2 s. Or draw on the traffic row.`;
    return { ...rate, span, patterns: all };
  }

  /** Sends the chosen pattern. */
  choose() {
    const rate = this.listPatterns();
    if (!rate) return;
    this.showProblem(null);
    if (this.select.value !== DRAWN) return this.sendTraffic(rate, rate.patterns[this.select.value].times);
    if (this.typed.value.trim() !== "") return this.type();
    this.sendTraffic(rate, this.drawnTimes(rate));
  }

  /** Sends the typed traffic. */
  type() {
    const rate = this.listPatterns();
    if (!rate) return;
    const times = parse(this.typed.value, rate.span);
    if (typeof times === "string") return this.showProblem(times, this.typed);
    this.showProblem(null);
    this.select.value = DRAWN;
    this.sendTraffic(rate, times);
  }

  /** Applies a stroke: sets the number of requests in parts of the time. The first stroke changes the traffic that is shown. */
  stroke(bins) {
    const rate = this.listPatterns();
    if (!rate) return;
    if (this.select.value !== DRAWN || this.typed.value !== "") this.drawn = binned(this.times, rate.span).map((count) => Math.min(count, MAX_DRAWN));
    for (const [bin, count] of bins) this.drawn[bin] = count;
    this.sendDrawn(rate);
  }

  /** Removes all requests, so that the user can draw new ones. */
  removeAll() {
    const rate = this.listPatterns();
    if (!rate) return;
    this.drawn.fill(0);
    this.sendDrawn(rate);
  }

  /** Sends the drawn traffic. */
  sendDrawn(rate) {
    this.typed.value = "";
    this.select.value = DRAWN;
    this.showProblem(null);
    this.sendTraffic(rate, this.drawnTimes(rate));
  }

  /** Returns the times of the drawn requests. */
  drawnTimes({ span }) {
    const wide = (span * 1000) / BINS;
    return this.drawn.flatMap((count, bin) => burst(Math.round(bin * wide), count, Math.floor(wide / Math.max(count, 1))));
  }

  /** Shows a problem, or removes it if it is null. */
  showProblem(problem, input = null) {
    this.problem.hidden = problem === null;
    this.problem.textContent = problem ?? "";
    this.typed.setAttribute("aria-invalid", String(input === this.typed));
  }

  /** Sends one comparison at a time. After it, sends only the last traffic that was chosen in that time. */
  async sendTraffic(rate, times) {
    this.times = times;
    this.next = { rate, times };
    if (this.isSending) return;
    [this.isSending, this.hasFailed] = [true, false];
    try {
      while (this.next) {
        const now = this.next;
        this.next = null;
        await this.compare(now);
      }
    } catch (error) {
      this.hasFailed = true;
      this.showProblem(error.message);
    } finally {
      this.isSending = false;
    }
  }

  /** Sends a comparison to the server, and shows the answer. */
  async compare({ rate, times }) {
    const window = { maxRequests: rate.limit, windowSeconds: rate.seconds };
    const perSecond = rate.limit / rate.seconds;
    const config = {
      "fixed-window": window, "sliding-window-log": window, "sliding-window-counter": window,
      "token-bucket": { maxTokens: rate.limit, refillRate: perSecond }, "leaky-bucket": { capacity: rate.limit, leakRate: perSecond },
      concurrency: { maxConcurrent: rate.limit, holdSeconds: MAX_JOB_S },
    };
    const answer = await send("POST", "/api/rate-limit/compare", { config, at_ms: times, window_ms: rate.seconds * 1000, takes_ms: rate.takes * 1000, ...rate.units });
    if (!answer.ok) return this.showProblem(reasonOf(answer));
    this.show(rate, times, answer.json);
  }

  /** Shows how each algorithm decided the traffic. */
  show(rate, times, comparisons) {
    this.timeline.show(rate, times, comparisons, rate.units);
    this.legend.replaceChildren(...(rate.units ? HELD_LEGEND : LEGEND).map(([kind, words]) => make("li", { class: kind }, words)));
    this.worstHeader.textContent = `most ${rate.units ? "units charged " : ""}in any ${rate.seconds} s of this traffic`;
    const hasExcess = comparisons.some(({ excess }) => excess > 0);
    this.boundHeader.textContent = `proven bound for any ${rate.seconds} s${hasExcess ? ", + units charged beyond the holds" : ""}`;
    const over = comparisons.filter((one) => !isOfJobs(one) && one.worst > rate.limit);
    const what = rate.units ? "units" : "requests";
    const ofJobs = comparisons.filter(isOfJobs).map((one) => `${title(one)} starts ${one.allowed} of ${times.length} jobs, and at most ${one.worst} run at once.`);
    this.summary.textContent = [
      ...(over.length === 0 ? [`With this traffic, no algorithm lets more than ${rate.limit} ${what} pass in any ${rate.seconds} s.`]
        : over.map((one) => `${title(one)} lets ${one.worst} ${what} pass in ${rate.seconds} s, ${beyond(one.worst, rate.limit)}.`)),
      ...ofJobs, ...(rate.units ? [NO_SHAPING] : []),
    ].join(" ");
    const atOnce = (one) => (isOfJobs(one) ? " at once" : "");
    this.table.replaceChildren(...comparisons.map((one) => make("tr", { "data-algorithm": one.algorithm },
      make("th", { scope: "row" }, title(one)), make("td", { class: "number" }, `${one.allowed} of ${times.length}`),
      make("td", { class: one.worst > rate.limit ? "number over" : "number" }, `${one.worst}${atOnce(one)}`),
      make("td", { class: "number" }, `${boundOf(one)}${atOnce(one)}`), make("td", {}, make("code", {}, one.limit)))));
  }
}

/** Returns an input field for a whole number. */
function number(id, min, max, value, onchange) {
  return make("input", { id, type: "number", min, max, step: 1, value, inputmode: "numeric", required: true, class: "narrow", onchange });
}
