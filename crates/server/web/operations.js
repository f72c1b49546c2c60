// Operations: how the server and its rules do. For operators.

import { ask, reasonOf } from "./api.js";
import { duration, make } from "./dom.js";

const REFRESH_MS = 1000;

/** Builds the view into a place, and shows its tab to those who may see it. */
export function operations(place, tab, onShown) {
  const view = new Operations();
  place.replaceChildren(view.element);
  const refresh = async () => {
    const answer = await ask("GET", "/v1/operations", undefined, view.token).catch(() => null);
    if (!answer) return;
    // 403: operators ask from the server's machine, and nobody here is one.
    const isShown = answer.status !== 403;
    if (isShown === tab.hidden) {
      tab.hidden = !isShown;
      onShown();
    }
    if (answer.ok) view.show(answer.json, performance.now());
    else if (answer.status === 401) view.askForToken();
  };
  view.refresh = refresh;
  refresh();
  setInterval(() => {
    if (document.visibilityState === "visible" && !place.hidden && !view.waits) refresh();
  }, REFRESH_MS);
}

class Operations {
  constructor() {
    /** Kept by this page alone, and gone with it. */
    this.token = null;
    this.waits = false;
    this.before = null;
    this.signIn = make("form", { class: "parameters", hidden: true, onsubmit: (event) => this.enter(event) },
      make("label", { for: "token" }, "operators' token", make("input", { id: "token", type: "password", autocomplete: "off", required: true })),
      make("button", { class: "act" }, "Show"), make("p", { class: "problem", role: "alert", hidden: true }));
    this.facts = make("dl", { class: "facts" });
    this.rules = table("Rules and limits", ["name", "its limit", "allowed a second", "refused a second", "shadow", "without the store"]);
    this.refused = table("Refused most of late", ["by", "key", "times", ""]);
    this.lookup = new Lookup(this);
    this.all = make("div", { class: "stack", hidden: true }, this.facts, this.rules.element, this.refused.element, this.lookup.element);
    this.element = make("div", {}, this.signIn, this.all);
  }

  askForToken() {
    const problem = this.signIn.querySelector(".problem");
    problem.hidden = this.token === null;
    problem.textContent = "that is not the token";
    [this.waits, this.signIn.hidden, this.all.hidden] = [true, false, true];
  }

  enter(event) {
    event.preventDefault();
    const input = this.signIn.querySelector("input");
    [this.token, input.value] = [input.value, ""];
    this.refresh();
  }

  show(now, atMs) {
    [this.waits, this.signIn.hidden, this.all.hidden] = [false, true, false];
    const servers = now.servers.map(({ server, breaker, waiting }) => `${server}, breaker ${breaker.replace("_", " ")}, ${waiting} waiting`);
    facts(this.facts, [
      ["store", [now.store, ...servers].join("; ")],
      ["ready", now.ready ? "yes" : "no"],
      ["rules", `generation ${now.generation}, hash ${now.rules_hash}`],
    ]);
    const rates = this.rates(now, atMs);
    this.rules.rows([...now.rules, ...now.limits].map((own) => {
      const rate = rates.get(own.name);
      return [own.name, make("code", {}, own.limit ?? "none"), rate ? rate.allowed : "…", rate ? rate.denied : "…", String(own.shadow_denied), String(own.degraded + own.failed)];
    }));
    this.refused.rows(now.refused.map(({ by, key, times, excess }) => [
      by, make("code", {}, escaped(key)), excess ? `${times - excess} to ${times}` : String(times),
      make("button", { type: "button", class: "quiet small", onclick: () => this.lookup.look(by, key) }, "Look up"),
    ]), "Nobody was refused of late.");
  }

  /** How many a second, since the last time. */
  rates(now, atMs) {
    const counts = new Map([...now.rules, ...now.limits].map((own) => [own.name, own]));
    const { counts: before, atMs: beforeMs } = this.before ?? { counts: new Map() };
    this.before = { counts, atMs };
    const rate = (own, old) => Math.max(0, (own - old) / ((atMs - beforeMs) / 1000)).toFixed(1);
    return new Map([...counts].filter(([name]) => before.has(name)).map(([name, own]) => {
      const old = before.get(name);
      return [name, { allowed: rate(own.allowed, old.allowed), denied: rate(own.denied, old.denied) }];
    }));
  }
}

/** A key: how it stands, and to forget it. */
class Lookup {
  constructor(operations) {
    this.operations = operations;
    const input = (id, placeholder) => make("input", { id, type: "text", required: true, spellcheck: "false", autocomplete: "off", placeholder, class: "wide" });
    [this.by, this.key] = [input("lookup-by", "api/per-client"), input("lookup-key", "ip=203.0.113.9")];
    this.answer = make("p", { role: "status", "data-field": "lookup" });
    this.element = make("form", { class: "stack", onsubmit: (event) => { event.preventDefault(); this.look(this.by.value, this.key.value); } },
      make("h2", {}, "Look up a key"),
      make("div", { class: "parameters" }, make("label", { for: "lookup-by" }, "rule or limit", this.by), make("label", { for: "lookup-key" }, "key", this.key),
        make("button", { class: "act" }, "Look up"), make("button", { type: "button", class: "quiet", onclick: () => this.reset() }, "Reset this key")),
      this.answer);
  }

  path() {
    return `/v1/limits/${encodeURIComponent(this.by.value)}/keys/${encodeURIComponent(this.key.value)}`;
  }

  async look(by, key) {
    [this.by.value, this.key.value] = [by, key];
    await this.tell(ask("GET", this.path(), undefined, this.operations.token), (own) => {
      const wait = own.retry_after_us === null ? "" : `; refused for ${duration(own.retry_after_us / 1e6)}`;
      return `${own.remaining} of ${own.limit} remain; all is back in ${duration(own.reset_after_us / 1e6)}${wait}`;
    });
  }

  async reset() {
    if (!this.element.reportValidity()) return;
    await this.tell(ask("DELETE", this.path(), undefined, this.operations.token), () => "It is forgotten, and may spend all of its limit again.");
  }

  async tell(asked, words) {
    try {
      const answer = await asked;
      this.answer.textContent = answer.ok ? words(answer.json) : reasonOf(answer);
    } catch (error) {
      this.answer.textContent = error.message;
    }
  }
}

/** What does not print, as what it is. */
function escaped(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);
}

function facts(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function table(title, columns) {
  const body = make("tbody", {});
  const element = make("div", { class: "scroll" }, make("table", {}, make("caption", {}, title),
    make("thead", {}, make("tr", {}, ...columns.map((name) => (name ? make("th", { scope: "col" }, name) : make("td", {}))))), body));
  const rows = (all, none = "") => body.replaceChildren(...(all.length ? all.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell))))
    : [make("tr", {}, make("td", { colspan: columns.length }, none))]));
  return { element, rows };
}
