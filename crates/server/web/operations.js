// Operations: how the server and its rules do. For operators.

import { ask, reasonOf } from "./api.js";
import { make } from "./dom.js";
import { Lookup, shown } from "./lookup.js";
import { COUNTED, OUTCOMES, Rates } from "./rates.js";

const WRONG = "that is not the token";

/** Builds the view into a place, for somebody who may have to show a token first. The answer asks the server anew. */
export function operations(place, needsToken) {
  const view = new Operations();
  place.replaceChildren(view.element);
  if (needsToken) view.askForToken();
  const refresh = async () => {
    if (view.waits || place.hidden) return;
    const answer = await ask("GET", "/v1/operations", undefined, view.token);
    if (answer.ok) view.show(answer.json, performance.now());
    else if (answer.status === 401) view.askForToken();
    else view.complain(reasonOf(answer));
  };
  view.refresh = () => refresh().catch((error) => view.complain(error.message));
  return refresh;
}

class Operations {
  constructor() {
    /** Kept by this page alone, and gone with it. */
    this.token = null;
    this.waits = false;
    this.input = make("input", { id: "token", type: "password", autocomplete: "off", required: true, class: "wide" });
    this.signIn = make("form", { class: "parameters", hidden: true, onsubmit: (event) => this.enter(event) },
      make("label", { for: "token" }, "operators' token", this.input), make("button", { class: "act" }, "Show"));
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.facts = make("dl", { class: "tiles" });
    this.rates = new Rates();
    this.rules = new Table("Rules and limits, decisions a second over 10 s", ["name", "its limit", ...OUTCOMES.map(({ words }) => words)]);
    this.refused = new Table("Most refused lately", ["by", "key", "times", "look up"]);
    this.lookup = new Lookup(() => this.token);
    this.all = make("div", { class: "stack", tabindex: "-1", hidden: true },
      this.facts, this.rates.element, this.rules.element, this.refused.element, this.lookup.element);
    this.element = make("div", { class: "stack" }, this.signIn, this.problem, this.all);
  }

  complain(problem) {
    this.problem.hidden = problem === null;
    this.problem.textContent = problem ?? "";
  }

  askForToken() {
    this.complain(this.token === null ? null : WRONG);
    [this.waits, this.signIn.hidden, this.all.hidden] = [true, false, true];
  }

  enter(event) {
    event.preventDefault();
    // What no header can say.
    if (!/^[\x21-\x7e]+$/.test(this.input.value)) return this.complain(WRONG);
    [this.token, this.input.value] = [this.input.value, ""];
    this.waits = false;
    this.refresh();
  }

  show(now, atMs) {
    this.complain(null);
    const isNew = !this.signIn.hidden;
    [this.signIn.hidden, this.all.hidden] = [true, false];
    if (isNew) this.all.focus();
    this.showFacts(now);
    const deciders = [...now.rules, ...now.limits];
    const rates = this.rates.heard(deciders, atMs);
    this.rules.rows(deciders.map((own) => [own.name, [
      own.name, spent(own.limits), ...OUTCOMES.map(({ name }) => rate(rates.get(own.name)?.[name], COUNTED[name](own))),
    ]]));
    this.refused.rows(now.refused.map(({ by, limit_name: limit, key, whole, times, excess }) => [`${by}\u{0}${key}`, [
      by === limit ? by : `${by} (${limit})`, make("code", {}, shown(key), whole ? "" : "…"), make("span", { class: "number" }, excess ? `${times - excess} to ${times}` : String(times)),
      whole ? make("button", { type: "button", class: "quiet small", "aria-label": `Look up ${shown(key)}`, onclick: () => this.lookup.look(by, key) }, "Look up") : "not all of it is known",
    ]]), "Nobody was refused lately.");
  }

  showFacts({ readiness, store, servers }) {
    const { ready, phase, generation, hash, rules_problem: problem } = readiness;
    const isAway = readiness.store === "unreachable";
    this.facts.replaceChildren(
      tile("server", ready ? "ready" : "not ready", phase === "draining" ? "it was told to stop" : isAway ? "the store does not answer" : "requests are welcome", !ready),
      tile("rules", `generation ${generation}`, problem ? `the file was refused: ${problem}` : `hash ${hash}`, problem !== null),
      tile("store", store, { memory: "in this process", reachable: "it answers", unreachable: "it does not answer" }[readiness.store], isAway),
      ...servers.map(({ server, breaker, waiting }) => tile(server, `breaker ${breaker.replace("_", " ")}`, `${waiting} waiting`, breaker !== "closed")));
  }
}

const tile = (name, value, note, isBad) => make("div", { class: isBad ? "tile bad" : "tile" }, make("dt", {}, name), make("dd", {}, value), make("dd", { class: "note" }, note));

/** The most limits of a rule that are listed. */
const MOST_LIMITS = 8;

/** The limits that a rule may spend, with their names if there are several. */
function spent(limits) {
  const [only] = limits;
  if (limits.length === 1) return make("code", {}, only.limit ?? only.limit_name);
  const lines = limits.slice(0, MOST_LIMITS).map(({ limit_name: name, limit }) => make("code", { class: "line" }, limit ? `${name}: ${limit}` : name));
  const rest = limits.length - lines.length;
  return make("span", {}, ...lines, rest > 0 ? `and ${rest} more` : null);
}

/** How many a second, and in all. */
function rate(perSecond, total) {
  return make("span", { class: "number" }, perSecond === undefined ? "…" : perSecond.toFixed(1), make("small", {}, `${total.toLocaleString("en")} in all`));
}

/** Rows under a title; they stay while what is in them stays, so that nobody loses a button under the finger. */
class Table {
  constructor(title, columns) {
    this.columns = columns;
    this.body = make("tbody", { role: "rowgroup" });
    const heads = columns.map((name) => make("th", { scope: "col", role: "columnheader" }, name));
    // Roles of their own: on a phone they are laid out as no table is.
    this.element = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, make("table", { class: "stacked", role: "table", "aria-label": title },
      make("caption", {}, title), make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)), this.body));
  }

  /** Each with what it is about, beside its cells. */
  rows(all, none = "") {
    const wanted = all.length ? all : [["", [none]]];
    while (this.body.rows.length > wanted.length) this.body.deleteRow(-1);
    wanted.forEach(([about, cells], at) => this.row(at, about, cells));
  }

  row(at, about, cells) {
    const told = [about, ...cells.map((cell) => cell.textContent ?? cell)].join("\u{0}");
    const own = this.body.rows[at] ?? this.body.appendChild(make("tr", { role: "row" }));
    if (own.told === told) return;
    own.told = told;
    const only = cells.length === 1 ? this.columns.length : null;
    own.replaceChildren(...cells.map((cell, column) => make("td", { role: "cell", colspan: only, "data-label": only ? null : this.columns[column] }, cell)));
  }
}
