// The playground: a card for each algorithm.

import { ALGORITHMS } from "./algorithms.js";
import { ask, heardTime, isAway, nowUs, reasonOf } from "./api.js";
import { draw, duration, make } from "./dom.js";
import { HEIGHT, STRIP_HEIGHT, WIDTH, isRecent, picture, strip } from "./pictures.js";

const BURST = 10;
const TOLD = ["ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"];

/** How often a picture is drawn anew at most; for those who want less motion. */
const FRAME_MS = 1000 / 30;
const CALM_FRAME_MS = 500;

/** Builds the cards into a place, and what is for all of them. The answer asks the server how the session stands. */
export function playground(place, { sendAll, burstAll, reset }) {
  const cards = ALGORITHMS.map((algorithm) => new Card(algorithm));
  place.replaceChildren(...cards.map((card) => card.element), ownClient());
  const refresh = oneAtATime(() => refreshed(cards));
  for (const card of cards) card.refresh = refresh;
  const toAll = (count) => Promise.all(cards.map((card) => card.request(count)));
  sendAll.addEventListener("click", () => toAll(1));
  burstAll.addEventListener("click", () => toAll(BURST));
  reset.addEventListener("click", async () => {
    try {
      const answer = await ask("POST", "/api/rate-limit/reset");
      if (!answer.ok) throw new Error(reasonOf(answer));
      for (const card of cards) card.forget();
      await refresh();
    } catch (error) {
      for (const card of cards) card.fail(error);
    }
  });
  animate(place, cards);
  return refresh;
}

/** Whoever asks while a question is under way is told the answer to the next one, which all of them share. */
function oneAtATime(question) {
  let [current, next] = [null, null];
  const ask = () => {
    current = question().finally(() => { current = null; });
    return current;
  };
  return () => {
    if (!current) return ask();
    next ??= current.catch(() => {}).then(() => {
      next = null;
      return ask();
    });
    return next;
  };
}

/** Asks how the session stands with each of them. */
async function refreshed(cards) {
  const used = cards.map((card) => card.used);
  const config = Object.fromEntries(cards.map((card, at) => [card.algorithm.id, used[at]]));
  const asked = performance.now();
  const answer = await ask("POST", "/api/rate-limit/state", { config });
  if (!answer.ok) throw new Error(reasonOf(answer));
  heardTime(answer.json.algorithms["fixed-window"].now_us, asked, performance.now());
  // What was asked with other parameters than a card has by now is of no use to it.
  cards.forEach((card, at) => card.used === used[at] && card.show(answer.json.algorithms[card.algorithm.id]));
}

function animate(place, cards) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let last = 0;
  const frame = (now) => {
    requestAnimationFrame(frame);
    const isDue = now - last > (calm.matches ? CALM_FRAME_MS : FRAME_MS) - 1;
    // Without the server nobody knows how things stand.
    if (!isDue || place.offsetParent === null || isAway()) return;
    last = now;
    for (const card of cards) card.draw(nowUs());
  };
  requestAnimationFrame(frame);
}

/** The same without a browser. */
function ownClient() {
  const command = [
    `curl -b jar -c jar --json '{"config":{"maxTokens":10,"refillRate":1}}' \\`,
    `  ${location.origin}/api/rate-limit/token-bucket`,
  ].join("\n");
  return make("article", { class: "card", "aria-labelledby": "own-title" },
    make("h2", {}, make("span", { id: "own-title" }, "Your own client")),
    make("div", { class: "rest" },
      make("p", { class: "why" }, "A session is a cookie, with counters of its own. The answer has allowed, remaining, limit, retryAfter and delay; /burst sends up to 50."),
      make("pre", { class: "command", tabindex: "0", "aria-label": "a command to try" }, command),
      make("p", { class: "why" }, "For services there is POST /v1/check, with limits and rules from a file, and the whole API at ", make("a", { href: "/openapi.json" }, "/openapi.json"), ".")));
}

class Card {
  constructor(algorithm) {
    this.algorithm = algorithm;
    this.view = null;
    this.answered = null;
    this.isComplaining = false;
    /** What was sent of late. */
    this.sent = [];
    const { id, title, choose, costs, parameters } = algorithm;
    this.left = make("span", { class: "left", "data-field": "remaining" });
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "picture", role: "img", "aria-label": title });
    this.strip = draw("svg", { viewBox: `0 0 ${WIDTH} ${STRIP_HEIGHT}`, class: "strip", "aria-hidden": "true" });
    this.carried = make("p", { class: "note", "data-field": "carried" });
    const kept = remembered(id);
    this.fields = parameters.map((parameter) => field(id, parameter, kept?.[parameter.name], () => this.changed()));
    this.problem = make("p", { class: "problem", role: "alert", id: `${id}-problem`, hidden: true });
    this.verdict = make("p", { class: "verdict none", "data-field": "verdict", role: "status" });
    this.answer = make("div", {});
    /** The parameters that were last sent, which the picture is of. */
    this.used = this.config() ?? usual(algorithm);
    this.element = make("article", { class: "card", id, "aria-labelledby": `${id}-title` },
      make("h2", {}, make("span", { id: `${id}-title` }, title), this.left),
      make("p", { class: "why" }, make("strong", {}, "Choose it "), lower(choose), make("br"), make("strong", {}, "It costs "), lower(costs)),
      make("div", {}, make("div", { class: "pictures" }, this.svg, this.strip), this.carried),
      make("div", { class: "buttons" },
        make("button", { type: "button", class: "act", onclick: () => this.request(1) }, "Send Request"),
        make("button", { type: "button", class: "quiet", onclick: () => this.request(BURST) }, `Burst ${BURST}`)),
      make("fieldset", { class: "parameters", "aria-label": `Parameters of ${title}` }, ...this.fields.map(({ label }) => label)),
      make("div", {}, this.problem, make("div", { class: "answer" }, this.verdict, this.answer)));
    this.forget();
  }

  /** What is in the fields; null if one of them is wrong. */
  config() {
    const config = {};
    for (const { input, parameter } of this.fields) {
      if (parameter.options) {
        config[parameter.name] = input.value;
        continue;
      }
      const number = Number(input.value);
      const isGood = input.value.trim() !== "" && input.checkValidity() && Number.isFinite(number);
      input.setAttribute("aria-invalid", String(!isGood));
      if (!isGood) {
        this.complain(`${parameter.label}: ${parameter.min} to ${parameter.max}${parameter.step === 1 ? ", whole" : ""}`);
        return null;
      }
      config[parameter.name] = number;
    }
    this.complain(null);
    return config;
  }

  complain(problem) {
    this.isComplaining = false;
    this.problem.hidden = problem === null;
    this.problem.textContent = problem ?? "";
  }

  /** Complains of the server, until it answers. */
  fail(error) {
    this.complain(error.message);
    this.isComplaining = true;
  }

  async changed() {
    const config = this.config();
    if (!config) return;
    this.used = config;
    remember(this.algorithm.id, config);
    await this.refresh().catch((error) => this.fail(error));
  }

  async request(count) {
    const config = this.config();
    if (!config) return;
    this.used = config;
    const path = `/api/rate-limit/${this.algorithm.id}`;
    const sentMs = performance.now();
    try {
      const answer = count === 1 ? await ask("POST", path, { config }) : await ask("POST", `${path}/burst`, { config, count });
      if (!answer.ok) return this.complain(reasonOf(answer));
      this.tell([answer.json].flat(), answer.headers, (sentMs + performance.now()) / 2);
      await this.refresh();
    } catch (error) {
      this.fail(error);
    }
  }

  /** Says what was decided, by the page's own clock: what it takes for the server's is still set right a little. */
  tell(decisions, headers, atMs) {
    const last = decisions.at(-1);
    const kinds = decisions.map(kindOf);
    this.answered = { last, atMs, isBurst: decisions.length > 1 };
    this.sent.push({ atUs: nowUs() - (performance.now() - atMs) * 1000, kinds });
    this.shake(kinds.at(-1) === "no");
    const { kind, words } = verdictOf(kinds);
    this.verdict.className = `verdict ${kind}`;
    this.verdict.textContent = words;
    this.retry = make("span", { "data-field": "retry" });
    this.answer.replaceChildren(
      make("p", {}, make("span", { "data-field": "left" }, `${last.remaining} of ${last.limit} were left`), this.retry),
      ...(decisions.length > 1 ? [make("ul", { class: "dots", "aria-label": "each of them" }, ...kinds.map(dot))] : []),
      make("p", { class: "note" }, decisions.length > 1 ? "What a client would see, of the last:" : "What a client would see:"),
      make("p", { class: "status", "data-field": "status" }, last.allowed ? "200 OK" : "429 Too Many Requests"),
      make("dl", { class: "headers", "aria-label": "response headers" }, ...TOLD.filter((name) => headers.has(name)).flatMap((name) => [
        make("dt", {}, name), make("dd", { "data-header": name }, headers.get(name))])));
    this.count();
  }

  /** Says no, once more if need be. */
  shake(isRefused) {
    this.element.classList.remove("refused");
    if (!isRefused) return;
    void this.element.offsetWidth;
    this.element.classList.add("refused");
  }

  /** Counts down what was told. */
  count() {
    if (!this.answered) return;
    const { last, atMs, isBurst } = this.answered;
    const gone = (performance.now() - atMs) / 1000;
    const it = isBurst ? "the last" : "it";
    let words = "";
    if (!last.allowed) {
      const left = last.retryAfter === null ? null : last.retryAfter - gone;
      words = left === null ? "; waiting does not help" : left > 0 ? `; try again in ${duration(left)}` : "; try again now";
    } else if (last.delay) {
      const left = last.delay - gone;
      words = left > 0 ? `; ${it} goes in ${duration(left)}` : `; ${it} has gone`;
    }
    if (this.retry.textContent !== words) this.retry.textContent = words;
  }

  show(view) {
    if (this.isComplaining) this.complain(null);
    this.view = view;
    const carried = view.decides.text === view.text ? "" : `Until what was spent has left, this decides: ${view.decides.text}`;
    if (this.carried.textContent !== carried) this.carried.textContent = carried;
    this.draw(nowUs());
  }

  forget() {
    this.answered = null;
    this.sent = [];
    this.element.classList.remove("refused");
    this.config();
    [this.verdict.className, this.verdict.textContent] = ["verdict none", "Nothing was sent yet."];
    this.answer.replaceChildren();
  }

  draw(atUs) {
    this.count();
    if (!this.view) return;
    const { parts, words, left: number } = picture(this.algorithm.id, this.view, atUs);
    this.svg.replaceChildren(...parts);
    this.sent = this.sent.filter((own) => isRecent(own, atUs));
    this.strip.replaceChildren(...strip(this.sent, atUs));
    if (this.svg.getAttribute("aria-label") !== words) this.svg.setAttribute("aria-label", words);
    const left = `${number} of ${this.view.limit} left`;
    if (this.left.textContent !== left) this.left.textContent = left;
  }
}

function usual({ parameters }) {
  return Object.fromEntries(parameters.map(({ name, value }) => [name, value]));
}

/** Parameters outlive a reload, as what was spent does. */
function remember(id, config) {
  sessionStorage.setItem(id, JSON.stringify(config));
}

function remembered(id) {
  try {
    return JSON.parse(sessionStorage.getItem(id));
  } catch {
    return null;
  }
}

const lower = (sentence) => sentence[0].toLowerCase() + sentence.slice(1);

const VERDICTS = { yes: "Allowed", no: "Refused", later: "Allowed, later" };

/** What became of a request. */
const kindOf = (decision) => (!decision.allowed ? "no" : decision.delay ? "later" : "yes");

/** What became of several. */
function verdictOf(kinds) {
  if (kinds.length === 1) return { kind: kinds[0], words: VERDICTS[kinds[0]] };
  const count = (kind) => kinds.filter((own) => own === kind).length;
  const later = count("later");
  const words = `${kinds.length - count("no")} of ${kinds.length} allowed${later ? `, ${later} later` : ""}`;
  return { kind: count("no") ? "no" : later ? "later" : "yes", words };
}

function dot(kind, at) {
  const words = VERDICTS[kind].toLowerCase();
  return make("li", { class: `dot ${kind}`, title: `${at + 1}: ${words}`, "aria-label": words }, { yes: "✓", no: "×", later: "…" }[kind]);
}

function field(card, parameter, kept, onchange) {
  const id = `${card}-${parameter.name}`;
  const input = parameter.options
    ? make("select", { id, onchange }, ...parameter.options.map((option) => make("option", { value: option }, option)))
    : make("input", {
      id, type: "number", min: parameter.min, max: parameter.max, step: parameter.step, inputmode: "decimal", required: true, "aria-describedby": `${card}-problem`, onchange,
    });
  input.value = kept ?? parameter.value;
  return { input, parameter, label: make("label", { for: id }, parameter.label, input) };
}
