// Finds and operates the cards of the playground.

import assert from "node:assert/strict";

/** The cards. `slow` has parameters with which no quota comes back during a test. `size` is the parameter that sets the limit. */
export const CARDS = [
  { id: "fixed-window", title: "Fixed window", size: "maxRequests", slow: { windowSeconds: 3600 } },
  { id: "sliding-window-log", title: "Sliding window log", size: "maxRequests", slow: { windowSeconds: 3600 } },
  { id: "sliding-window-counter", title: "Sliding window counter", size: "maxRequests", slow: { windowSeconds: 3600 } },
  { id: "token-bucket", title: "Token bucket", size: "maxTokens", slow: { refillRate: 0.01 } },
  { id: "leaky-bucket", title: "Leaky bucket", size: "capacity", slow: { leakRate: 0.01 } },
];

/** The card of the concurrency limit, which starts jobs instead of sending requests. */
export const JOBS = { id: "concurrency", title: "Concurrency limit", size: "maxConcurrent", slow: { holdSeconds: 3600 } };

export class Card {
  constructor(visit, { id, title }) {
    [this.visit, this.id] = [visit, id];
    this.path = `/api/rate-limit/${id}`;
    this.element = visit.page.getByRole("article", { name: title, exact: true });
    this.sendButton = this.element.getByRole("button", { name: "Send Request" });
    this.burstButton = this.element.getByRole("button", { name: "Burst 10" });
    this.picture = this.element.getByRole("img");
    this.headers = this.element.locator("[data-header]");
    this.problem = this.element.getByRole("alert");
    this.dots = this.element.getByRole("list", { name: "result of each request" }).getByRole("listitem");
    this.startButton = this.element.getByRole("button", { name: "Start", exact: true });
    this.reserveButton = this.element.getByRole("button", { name: "Reserve" });
    this.holds = this.element.getByRole("list", { name: /open holds|running jobs/ }).getByRole("listitem");
  }

  input(parameter) {
    return this.element.locator(`#${this.id}-${parameter}`);
  }

  /** Finds a text of the card: `remaining` next to the title, or `verdict`, `left` or `retry` below it. */
  field(name) {
    return this.element.locator(`[data-field=${name}]`);
  }

  /** Types parameters, and waits until the page has read the state for them. */
  async set(parameters) {
    for (const [name, value] of Object.entries(parameters)) {
      if ((await this.input(name).inputValue()) === String(value)) continue;
      await this.visit.answerTo("/api/rate-limit/state", async () => {
        if (typeof value === "string") return this.input(name).selectOption(value);
        await this.input(name).fill(String(value));
        await this.input(name).press("Tab");
      }, ({ config }) => config[this.id][name] === value);
    }
  }

  send() {
    return this.visit.answerTo(this.path, () => this.sendButton.click());
  }

  burst() {
    return this.visit.answerTo(`${this.path}/burst`, () => this.burstButton.click());
  }

  start() {
    return this.visit.answerTo(`${this.path}/reserve`, () => this.startButton.click());
  }

  /** Types units and seconds, and reserves the units. */
  async reserve(units, seconds) {
    await this.input("units").fill(String(units));
    await this.input("seconds").fill(String(seconds));
    return this.visit.answerTo(`${this.path}/reserve`, () => this.reserveButton.click());
  }

  /** Types the used units of a hold, and settles it. */
  async settle(hold, used) {
    await this.input(`used-${hold}`).fill(String(used));
    return this.visit.answerTo(`${this.path}/settle`, () => this.element.getByRole("button", { name: `Settle hold ${hold}`, exact: true }).click());
  }

  end(job) {
    return this.visit.answerTo(`${this.path}/settle`, () => this.element.getByRole("button", { name: `End job ${job}`, exact: true }).click());
  }

  /** Returns the headers that the card shows, by name. */
  async shownHeaders() {
    return Object.fromEntries(await this.headers.evaluateAll((all) => all.map((header) => [header.dataset.header, header.textContent])));
  }

  /** Returns the number next to the title. */
  async left() {
    return Number(/\d+/.exec(await this.field("remaining").textContent())[0]);
  }
}

/** Returns the texts of an element, in order, until one matches `last`. */
export function textsUntil(locator, last) {
  return locator.evaluate((element, last) => new Promise((resolve) => {
    const texts = [element.textContent];
    const check = () => {
      if (element.textContent !== texts.at(-1)) texts.push(element.textContent);
      if (new RegExp(last).test(texts.at(-1))) resolve(texts);
      else requestAnimationFrame(check);
    };
    check();
  }), last.source);
}

/** Parses a duration such as `1.2 s` or `340 ms` into seconds. */
export function secondsIn(text) {
  const [, number, unit] = /([\d.]+) (ms|s|min|h)\b/.exec(text) ?? assert.fail(`no duration in ${text}`);
  return Number(number) * { ms: 0.001, s: 1, min: 60, h: 3600 }[unit];
}
