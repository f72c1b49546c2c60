// The playground, with a card for each algorithm.

import { ALGORITHMS } from "./algorithms.js";
import { isUnreachable, nowUs, reasonOf, send, setClock } from "./api.js";
import { draw, duration, make } from "./dom.js";
import { HEIGHT, STRIP_HEIGHT, WIDTH, isRecent, picture, strip } from "./pictures.js";

const BURST = 10;
/** The headers of an answer that a card shows. */
const SHOWN_HEADERS = ["ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"];

/** The shortest time between two drawings of a picture. */
const FRAME_MS = 1000 / 30;
/** The same if the browser asks for reduced motion. */
const CALM_FRAME_MS = 500;

/** Adds the cards to `place`, and connects the buttons for all cards. Returns a function that updates the cards from the server. */
export function playground(place, { sendAll, burstAll, reset }) {
  const cards = ALGORITHMS.map((algorithm) => new Card(algorithm));
  place.replaceChildren(...cards.map((card) => card.element), commandLineCard());
  const refresh = oneAtATime(() => updateCards(cards));
  for (const card of cards) card.refresh = refresh;
  const toAll = (count) => Promise.all(cards.map((card) => card.request(count)));
  sendAll.addEventListener("click", () => toAll(1));
  burstAll.addEventListener("click", () => toAll(BURST));
  reset.addEventListener("click", async () => {
    try {
      const answer = await send("POST", "/api/rate-limit/reset");
      if (!answer.ok) throw new Error(reasonOf(answer));
      for (const card of cards) card.clear();
      await refresh();
    } catch (error) {
      for (const card of cards) card.showFailure(error);
    }
  });
  animate(place, cards);
  return refresh;
}

/**
 * Returns a function that runs `task`, but never twice at the same time. Calls during a run share one further run, which
 * starts after it.
 */
function oneAtATime(task) {
  let [current, next] = [null, null];
  const run = () => {
    current = task().finally(() => { current = null; });
    return current;
  };
  return () => {
    if (!current) return run();
    next ??= current.catch(() => {}).then(() => {
      next = null;
      return run();
    });
    return next;
  };
}

/** Reads the session's state from the server, and shows it on the cards. */
async function updateCards(cards) {
  const sent = cards.map((card) => card.shownConfig);
  const config = Object.fromEntries(cards.map((card, at) => [card.algorithm.id, sent[at]]));
  const sentMs = performance.now();
  const answer = await send("POST", "/api/rate-limit/state", { config });
  if (!answer.ok) throw new Error(reasonOf(answer));
  setClock(answer.json.algorithms["fixed-window"].now_us, sentMs, performance.now());
  // A card whose parameters have changed since the request does not use the answer.
  cards.forEach((card, at) => card.shownConfig === sent[at] && card.showState(answer.json.algorithms[card.algorithm.id]));
}

/** Draws the pictures again and again while they are visible. */
function animate(place, cards) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let last = 0;
  const frame = (now) => {
    requestAnimationFrame(frame);
    const isDue = now - last > (calm.matches ? CALM_FRAME_MS : FRAME_MS) - 1;
    // While the server cannot be reached, its state is not known.
    if (!isDue || place.offsetParent === null || isUnreachable()) return;
    last = now;
    for (const card of cards) card.draw(nowUs());
  };
  requestAnimationFrame(frame);
}

/** Returns a card that shows how to send requests from the command line. */
function commandLineCard() {
  const command = [
    `curl -b jar -c jar --json '{"config":{"maxTokens":10,"refillRate":1}}' \\`,
    `  ${location.origin}/api/rate-limit/token-bucket`,
  ].join("\n");
  return make("article", { class: "card", "aria-labelledby": "own-title" },
    make("h2", {}, make("span", { id: "own-title" }, "Your own client")),
    make("div", { class: "rest" },
      make("p", { class: "why" }, "A cookie identifies your session, and each session has its own counters. An answer has the fields allowed, remaining, limit, retryAfter and delay. Add /burst to the path to send up to 50 requests at once."),
      make("pre", { class: "command", tabindex: "0", "aria-label": "an example command" }, command),
      make("p", { class: "why" }, "Services use POST /v1/check, with limits and rules from a file. The description of the whole API is at ", make("a", { href: "/openapi.json" }, "/openapi.json"), ".")));
}

/** The card of an algorithm. */
class Card {
  constructor(algorithm) {
    this.algorithm = algorithm;
    /** The state of the algorithm that the server sent last. */
    this.view = null;
    /** The last answer to a request. */
    this.lastAnswer = null;
    /** Whether the card shows that the server failed. */
    this.showsFailure = false;
    /** The requests of the last seconds. */
    this.recent = [];
    const { id, title, choose, costs, parameters } = algorithm;
    this.remaining = make("span", { class: "left", "data-field": "remaining" });
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "picture", role: "img", "aria-label": title });
    this.strip = draw("svg", { viewBox: `0 0 ${WIDTH} ${STRIP_HEIGHT}`, class: "strip", "aria-hidden": "true" });
    this.earlierLimit = make("p", { class: "note", "data-field": "carried" });
    const saved = savedConfig(id);
    this.fields = parameters.map((parameter) => field(id, parameter, saved?.[parameter.name], () => this.changed()));
    this.problem = make("p", { class: "problem", role: "alert", id: `${id}-problem`, hidden: true });
    this.verdict = make("p", { class: "verdict none", "data-field": "verdict", role: "status" });
    this.answer = make("div", {});
    /** The parameters whose state the card shows. */
    this.shownConfig = this.config() ?? defaultConfig(algorithm);
    this.element = make("article", { class: "card", id, "aria-labelledby": `${id}-title` },
      make("h2", {}, make("span", { id: `${id}-title` }, title), this.remaining),
      make("p", { class: "why" }, make("strong", {}, "Choose it "), lower(choose), make("br"), make("strong", {}, "It costs "), lower(costs)),
      make("div", {}, make("div", { class: "pictures" }, this.svg, this.strip), this.earlierLimit),
      make("div", { class: "buttons" },
        make("button", { type: "button", class: "act", onclick: () => this.request(1) }, "Send Request"),
        make("button", { type: "button", class: "quiet", onclick: () => this.request(BURST) }, `Burst ${BURST}`)),
      make("fieldset", { class: "parameters", "aria-label": `Parameters of ${title}` }, ...this.fields.map(({ label }) => label)),
      make("div", {}, this.problem, make("div", { class: "answer" }, this.verdict, this.answer)));
    this.clear();
  }

  /** Returns the parameters in the fields; null if one of them is invalid. */
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
        this.showProblem(`${parameter.label}: enter a ${parameter.step === 1 ? "whole " : ""}number, ${parameter.min} to ${parameter.max}`);
        return null;
      }
      config[parameter.name] = number;
    }
    this.showProblem(null);
    return config;
  }

  /** Shows a problem, or removes it if it is null. */
  showProblem(problem) {
    this.showsFailure = false;
    this.problem.hidden = problem === null;
    this.problem.textContent = problem ?? "";
  }

  /** Shows that the server failed, until it answers. */
  showFailure(error) {
    this.showProblem(error.message);
    this.showsFailure = true;
  }

  /** Reads the state for changed parameters. */
  async changed() {
    const config = this.config();
    if (!config) return;
    this.shownConfig = config;
    saveConfig(this.algorithm.id, config);
    await this.refresh().catch((error) => this.showFailure(error));
  }

  /** Sends requests, and shows the answer. */
  async request(count) {
    const config = this.config();
    if (!config) return;
    this.shownConfig = config;
    const path = `/api/rate-limit/${this.algorithm.id}`;
    const sentMs = performance.now();
    try {
      const answer = count === 1 ? await send("POST", path, { config }) : await send("POST", `${path}/burst`, { config, count });
      if (!answer.ok) return this.showProblem(reasonOf(answer));
      this.showAnswer([answer.json].flat(), answer.headers, (sentMs + performance.now()) / 2);
      await this.refresh();
    } catch (error) {
      this.showFailure(error);
    }
  }

  /** Shows decisions. `atMs` is a time of the browser's clock, because the page's copy of the server's clock is corrected at times. */
  showAnswer(decisions, headers, atMs) {
    const last = decisions.at(-1);
    const kinds = decisions.map(kindOf);
    this.lastAnswer = { last, atMs, isBurst: decisions.length > 1 };
    this.recent.push({ atUs: nowUs() - (performance.now() - atMs) * 1000, kinds });
    this.shake(kinds.at(-1) === "no");
    const { kind, words } = verdictOf(kinds);
    this.verdict.className = `verdict ${kind}`;
    this.verdict.textContent = words;
    this.retry = make("span", { "data-field": "retry" });
    this.answer.replaceChildren(
      make("p", {}, make("span", { "data-field": "left" }, `Remaining after the ${decisions.length > 1 ? "burst" : "request"}: ${last.remaining} of ${last.limit}`), this.retry),
      ...(decisions.length > 1 ? [make("ul", { class: "dots", "aria-label": "result of each request" }, ...kinds.map(dot))] : []),
      make("p", { class: "note" }, decisions.length > 1 ? "The response to the last request, as a client would see it:" : "The response, as a client would see it:"),
      make("p", { class: "status", "data-field": "status" }, last.allowed ? "200 OK" : "429 Too Many Requests"),
      make("dl", { class: "headers", "aria-label": "response headers" }, ...SHOWN_HEADERS.filter((name) => headers.has(name)).flatMap((name) => [
        make("dt", {}, name), make("dd", { "data-header": name }, headers.get(name))])));
    this.showWait();
  }

  /** Shakes the card if a request was refused, even if the card shakes already. */
  shake(isRefused) {
    this.element.classList.remove("refused");
    if (!isRefused) return;
    void this.element.offsetWidth;
    this.element.classList.add("refused");
  }

  /** Shows how long the last refused request has to wait, or when the last delayed request leaves. */
  showWait() {
    if (!this.lastAnswer) return;
    const { last, atMs, isBurst } = this.lastAnswer;
    const elapsed = (performance.now() - atMs) / 1000;
    const it = isBurst ? "the last request" : "it";
    let words = "";
    if (!last.allowed) {
      const left = last.retryAfter === null ? null : last.retryAfter - elapsed;
      words = left === null ? "; waiting does not help" : left > 0 ? `; try again in ${duration(left)}` : "; try again now";
    } else if (last.delay) {
      const left = last.delay - elapsed;
      words = left > 0 ? `; ${it} leaves in ${duration(left)}` : `; ${it} has left`;
    }
    if (this.retry.textContent !== words) this.retry.textContent = words;
  }

  /** Shows the state of the algorithm. */
  showState(view) {
    if (this.showsFailure) this.showProblem(null);
    this.view = view;
    const note = view.decides.text === view.text ? "" : `The earlier limit decides until its charges have expired: ${view.decides.text}`;
    if (this.earlierLimit.textContent !== note) this.earlierLimit.textContent = note;
    this.draw(nowUs());
  }

  /** Removes the last answer. */
  clear() {
    this.lastAnswer = null;
    this.recent = [];
    this.element.classList.remove("refused");
    this.config();
    [this.verdict.className, this.verdict.textContent] = ["verdict none", "No request sent yet."];
    this.answer.replaceChildren();
  }

  /** Draws the state at a time of the server's clock. */
  draw(atUs) {
    this.showWait();
    if (!this.view) return;
    const { parts, words, left: number } = picture(this.algorithm.id, this.view, atUs);
    this.svg.replaceChildren(...parts);
    this.recent = this.recent.filter((requests) => isRecent(requests, atUs));
    this.strip.replaceChildren(...strip(this.recent, atUs));
    if (this.svg.getAttribute("aria-label") !== words) this.svg.setAttribute("aria-label", words);
    const left = `${number} of ${this.view.limit} left`;
    if (this.remaining.textContent !== left) this.remaining.textContent = left;
  }
}

function defaultConfig({ parameters }) {
  return Object.fromEntries(parameters.map(({ name, value }) => [name, value]));
}

/** Saves parameters, because counters survive a reload of the page and parameters should too. */
function saveConfig(id, config) {
  sessionStorage.setItem(id, JSON.stringify(config));
}

function savedConfig(id) {
  try {
    return JSON.parse(sessionStorage.getItem(id));
  } catch {
    return null;
  }
}

const lower = (sentence) => sentence[0].toLowerCase() + sentence.slice(1);

const VERDICTS = { yes: "Allowed", no: "Refused", later: "Allowed, delayed" };

/** Returns the result of a request: allowed, refused, or allowed after a delay. */
const kindOf = (decision) => (!decision.allowed ? "no" : decision.delay ? "later" : "yes");

/** Returns the text for the results of several requests. */
function verdictOf(kinds) {
  if (kinds.length === 1) return { kind: kinds[0], words: VERDICTS[kinds[0]] };
  const count = (kind) => kinds.filter((other) => other === kind).length;
  const later = count("later");
  const words = `${kinds.length - count("no")} of ${kinds.length} allowed${later ? `, ${later} delayed` : ""}`;
  return { kind: count("no") ? "no" : later ? "later" : "yes", words };
}

/** Returns the dot of a request of a burst. */
function dot(kind, at) {
  const words = VERDICTS[kind].toLowerCase();
  return make("li", { class: `dot ${kind}`, title: `${at + 1}: ${words}`, "aria-label": words }, { yes: "✓", no: "×", later: "…" }[kind]);
}

/** Returns the input field of a parameter. */
function field(card, parameter, saved, onchange) {
  const id = `${card}-${parameter.name}`;
  const input = parameter.options
    ? make("select", { id, onchange }, ...parameter.options.map((option) => make("option", { value: option }, option)))
    : make("input", {
      id, type: "number", min: parameter.min, max: parameter.max, step: parameter.step, inputmode: "decimal", required: true, "aria-describedby": `${card}-problem`, onchange,
    });
  input.value = saved ?? parameter.value;
  return { input, parameter, label: make("label", { for: id }, parameter.label, input) };
}
