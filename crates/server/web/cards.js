// The playground, with a card for each algorithm.

import { ALGORITHMS } from "./algorithms.js";
import { isUnreachable, nowUs, reasonOf, send, setClock } from "./api.js";
import { draw, duration, make } from "./dom.js";
import { HoldPanel } from "./holds.js";
import { HEIGHT, STRIP_HEIGHT, WIDTH, isRecent, picture, strip } from "./pictures.js";

const BURST = 10;
/** The headers of an answer that a card shows. */
const SHOWN_HEADERS = ["ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"];

/** The shortest time between two drawings of a picture. */
const FRAME_MS = 1000 / 30;
/** The same if the browser asks for reduced motion. */
const CALM_FRAME_MS = 500;

/**
 * Adds the cards to `place`, and connects the buttons for all cards. Without holds on the server there is no concurrency.
 * Returns a function that updates the cards from the server.
 */
export function playground(place, { sendAll, burstAll, reset }, hasHolds) {
  const cards = ALGORITHMS.filter(({ jobs }) => hasHolds || !jobs).map((algorithm) => new Card(algorithm, hasHolds));
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
      make("p", { class: "why" }, "A cookie identifies your session, and each session has its own counters. An answer has the fields allowed, remaining, limit, retryAfter and delay. Add /burst to the path to send up to 50 requests at once, or /reserve and /settle to hold units."),
      make("pre", { class: "command", tabindex: "0", "aria-label": "an example command" }, command),
      make("p", { class: "why" }, "Services use POST /v1/check, with limits and rules from a file. The description of the whole API is at ", make("a", { href: "/openapi.json" }, "/openapi.json"), ".")));
}

/** The card of an algorithm. */
class Card {
  constructor(algorithm, hasHolds) {
    this.algorithm = algorithm;
    this.words = algorithm.jobs ? JOB_WORDS : REQUEST_WORDS;
    this.path = `/api/rate-limit/${algorithm.id}`;
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
    this.holds = new HoldPanel(algorithm, {
      onreserve: (units, seconds) => this.reserve({ units, seconds }),
      onsettled: () => this.refresh(),
      onproblem: (problem) => this.showProblem(problem),
      onfailure: (error) => this.showFailure(error),
    });
    /** The parameters whose state the card shows. */
    this.shownConfig = this.config() ?? defaultConfig(algorithm);
    this.element = make("article", { class: "card", id, "aria-labelledby": `${id}-title` },
      make("h2", {}, make("span", { id: `${id}-title` }, title), this.remaining),
      make("p", { class: "why" }, make("strong", {}, "Choose it "), lower(choose), make("br"), make("strong", {}, "It costs "), lower(costs)),
      make("div", {}, make("div", { class: "pictures" }, this.svg, this.strip), this.earlierLimit),
      make("div", { class: "buttons" },
        make("button", { type: "button", class: "act", onclick: () => this.request(1) }, this.words.send),
        make("button", { type: "button", class: "quiet", onclick: () => this.request(BURST) }, this.words.burst)),
      make("fieldset", { class: "parameters", "aria-label": `Parameters of ${title}` }, ...this.fields.map(({ label }) => label)),
      hasHolds ? this.holds.element : make("div", {}),
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
    this.holds.setSupported(config.mode !== "shaping");
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

  /** Sends requests, or starts jobs, and shows the answer. */
  async request(count) {
    if (this.algorithm.jobs) return this.reserve({}, count);
    return this.ask((config) => (count === 1 ? send("POST", this.path, { config }) : send("POST", `${this.path}/burst`, { config, count })), this.words);
  }

  /** Reserves units, `count` times, and shows the answers. */
  async reserve(terms, count = 1) {
    return this.ask(async (config) => {
      const decisions = [];
      let answer;
      for (let at = 0; at < count; at += 1) {
        answer = await send("POST", `${this.path}/reserve`, { config, ...terms });
        if (!answer.ok) return answer;
        decisions.push(answer.json);
      }
      return { ...answer, json: decisions };
    }, this.algorithm.jobs ? this.words : RESERVE_WORDS);
  }

  /** Sends what `act` sends for the parameters in the fields, and shows the answer. */
  async ask(act, words) {
    const config = this.config();
    if (!config) return;
    this.shownConfig = config;
    const sentMs = performance.now();
    try {
      const answer = await act(config);
      if (answer.ok) this.showAnswer([answer.json].flat(), answer.headers, (sentMs + performance.now()) / 2, words);
      else this.showProblem(reasonOf(answer));
      await this.refresh();
    } catch (error) {
      this.showFailure(error);
    }
  }

  /** Shows decisions. `atMs` is a time of the browser's clock, because the page's copy of the server's clock is corrected at times. */
  showAnswer(decisions, headers, atMs, words) {
    const last = decisions.at(-1);
    const kinds = decisions.map(kindOf);
    const isBurst = decisions.length > 1;
    this.lastAnswer = { last, atMs, isBurst, words };
    this.holds.clear();
    this.recent.push({ atUs: nowUs() - (performance.now() - atMs) * 1000, kinds });
    this.shake(kinds.at(-1) === "no");
    const verdict = verdictOf(kinds, words);
    this.verdict.className = `verdict ${verdict.kind}`;
    this.verdict.textContent = verdict.words;
    this.retry = make("span", { "data-field": "retry" });
    this.answer.replaceChildren(
      make("p", {}, make("span", { "data-field": "left" }, `${isBurst ? words.leftAfterAll : words.leftAfter}: ${last.remaining} of ${last.limit}`), this.retry),
      ...(isBurst ? [make("ul", { class: "dots", "aria-label": "result of each request" }, ...kinds.map((kind, at) => dot(kind, at, words)))] : []),
      make("p", { class: "note" }, isBurst ? "The response to the last request, as a client would see it:" : "The response, as a client would see it:"),
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
    const { last, atMs, isBurst, words: { again } } = this.lastAnswer;
    const elapsed = (performance.now() - atMs) / 1000;
    const it = isBurst ? "the last request" : "it";
    let words = "";
    if (!last.allowed) {
      const left = last.retryAfter === null ? null : last.retryAfter - elapsed;
      words = left === null ? "; waiting does not help" : left > 0 ? `; ${again} ${duration(left)}` : "; try again now";
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
    this.holds.clear();
    [this.verdict.className, this.verdict.textContent] = ["verdict none", this.words.none];
    this.answer.replaceChildren();
  }

  /** Draws the state at a time of the server's clock. */
  draw(atUs) {
    this.showWait();
    if (!this.view) return;
    const { parts, words, left: number } = picture(this.algorithm.id, this.view, atUs);
    this.svg.replaceChildren(...parts);
    this.recent = this.recent.filter((requests) => isRecent(requests, atUs));
    this.strip.replaceChildren(...strip(this.recent, atUs, this.words.recent));
    this.holds.draw(this.view.holds, atUs);
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

/** The texts for requests, for jobs, and for reservations. */
const REQUEST_WORDS = {
  send: "Send Request", burst: `Burst ${BURST}`, none: "No request sent yet.", recent: "your requests",
  leftAfter: "Remaining after the request", leftAfterAll: "Remaining after the burst", again: "try again in", passed: "allowed",
  verdicts: { yes: "Allowed", no: "Refused", later: "Allowed, delayed" },
};
const JOB_WORDS = {
  send: "Start", burst: `Start ${BURST}`, none: "No job started yet.", recent: "your jobs",
  leftAfter: "Free places after the start", leftAfterAll: "Free places after all starts", again: "the next place is free at the latest in", passed: "started",
  verdicts: { held: "Started", no: "Refused" },
};
const RESERVE_WORDS = {
  leftAfter: "Remaining after the reservation", again: "if the holds are left to expire, try again in", passed: "held",
  verdicts: { held: "Held", no: "Refused" },
};

/** Returns the result of a request: allowed, held, refused, or allowed after a delay. */
const kindOf = (decision) => (!decision.allowed ? "no" : decision.hold ? "held" : decision.delay ? "later" : "yes");

/** Returns the text for the results of several requests. */
function verdictOf(kinds, { passed, verdicts }) {
  if (kinds.length === 1) return { kind: kinds[0], words: verdicts[kinds[0]] };
  const count = (kind) => kinds.filter((other) => other === kind).length;
  const later = count("later");
  const words = `${kinds.length - count("no")} of ${kinds.length} ${passed}${later ? `, ${later} delayed` : ""}`;
  return { kind: count("no") ? "no" : later ? "later" : kinds[0], words };
}

/** Returns the dot of a request of a burst. */
function dot(kind, at, { verdicts }) {
  const words = verdicts[kind].toLowerCase();
  return make("li", { class: `dot ${kind}`, title: `${at + 1}: ${words}`, "aria-label": words }, { yes: "✓", held: "✓", no: "×", later: "…" }[kind]);
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
