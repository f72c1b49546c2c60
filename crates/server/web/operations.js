// The Operations view, for operators: the state of the server, its rules and its keys.

import { reasonOf, send } from "./api.js";
import { make } from "./dom.js";
import { Lookup, printable } from "./lookup.js";
import { COUNTED, OUTCOMES, Rates } from "./rates.js";

const WRONG_TOKEN = "wrong token";

/**
 * Adds the view to `place`. If `needsToken`, the user has to enter the operator token first. Returns a function that updates
 * the view from the server.
 */
export function operations(place, needsToken) {
  const view = new Operations();
  place.replaceChildren(view.element);
  if (needsToken) view.requestToken();
  const refresh = async () => {
    if (view.needsToken || place.hidden) return;
    const answer = await send("GET", "/v1/operations", undefined, view.token);
    if (answer.ok) view.show(answer.json, performance.now());
    else if (answer.status === 401) view.requestToken();
    else view.showProblem(reasonOf(answer));
  };
  view.refresh = () => refresh().catch((error) => view.showProblem(error.message));
  return refresh;
}

class Operations {
  constructor() {
    /** The operator token. Only this variable keeps it, so it is lost when the page is closed. */
    this.token = null;
    /** Whether the view waits for the token. */
    this.needsToken = false;
    this.input = make("input", { id: "token", type: "password", autocomplete: "off", required: true, class: "wide" });
    this.signIn = make("form", { class: "parameters", hidden: true, onsubmit: (event) => this.enter(event) },
      make("label", { for: "token" }, "operator token", this.input), make("button", { class: "act" }, "Show"));
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.facts = make("dl", { class: "tiles" });
    this.rates = new Rates();
    this.rules = new Table("Rules and limits: decisions per second, over 10 s", ["name", "limit", ...OUTCOMES.map(({ words }) => words)]);
    this.refused = new Table("Most refused keys", ["rule or limit", "key", "refusals", "look up"]);
    this.lookup = new Lookup(() => this.token);
    this.all = make("div", { class: "stack", tabindex: "-1", hidden: true },
      this.facts, this.rates.element, this.rules.element, this.refused.element, this.lookup.element);
    this.element = make("div", { class: "stack" }, this.signIn, this.problem, this.all);
  }

  /** Shows a problem, or removes it if it is null. */
  showProblem(problem) {
    this.problem.hidden = problem === null;
    this.problem.textContent = problem ?? "";
  }

  /** Shows the field for the token instead of the view. */
  requestToken() {
    this.showProblem(this.token === null ? null : WRONG_TOKEN);
    [this.needsToken, this.signIn.hidden, this.all.hidden] = [true, false, true];
  }

  /** Uses the token in the field. */
  enter(event) {
    event.preventDefault();
    // A header cannot contain any other characters.
    if (!/^[\x21-\x7e]+$/.test(this.input.value)) return this.showProblem(WRONG_TOKEN);
    [this.token, this.input.value] = [this.input.value, ""];
    this.needsToken = false;
    this.refresh();
  }

  /** Shows an answer of the server, which came at `atMs`. */
  show(now, atMs) {
    this.showProblem(null);
    const isNew = !this.signIn.hidden;
    [this.signIn.hidden, this.all.hidden] = [true, false];
    if (isNew) this.all.focus();
    this.showFacts(now);
    const counters = [...now.rules, ...now.limits];
    const rates = this.rates.update(counters, atMs);
    this.rules.rows(counters.map((counter) => [counter.name, [
      counter.name, limitTexts(counter.limits), ...OUTCOMES.map(({ name }) => rate(rates.get(counter.name)?.[name], COUNTED[name](counter))),
    ]]));
    this.refused.rows(now.refused.map(({ by, limit_name: limit, key, whole, times, excess }) => [`${by}\u{0}${key}`, [
      by === limit ? by : `${by} (${limit})`, make("code", {}, printable(key), whole ? "" : "…"), make("span", { class: "number" }, excess ? `${times - excess} to ${times}` : String(times)),
      whole ? make("button", { type: "button", class: "quiet small", "aria-label": `Look up ${printable(key)}`, onclick: () => this.lookup.lookUp(by, key) }, "Look up") : "only part of the key is known",
    ]]), "No key was refused recently.");
  }

  showFacts({ readiness, store, servers, leases }) {
    const { ready, phase, generation, hash, rules_problem: problem } = readiness;
    const isUnreachable = readiness.store === "unreachable";
    this.facts.replaceChildren(
      tile("server", ready ? "ready" : "not ready", phase === "draining" ? "shutting down" : isUnreachable ? "the store does not answer" : "accepting requests", !ready),
      tile("rules", `generation ${generation}`, problem ? `there is a problem with the rules: ${problem}` : `hash ${hash}`, problem !== null),
      tile("store", store, { memory: "in this process", reachable: "reachable", unreachable: "does not answer" }[readiness.store], isUnreachable),
      ...servers.map(({ server, breaker, waiting }) => tile(server, `breaker ${breaker.replace("_", " ")}`, `waiting work: ${waiting}`, breaker !== "closed")),
      ...(leases ? [leaseTile(leases)] : []));
  }
}

/** Returns a tile with a name, a value and a note. */
const tile = (name, value, note, isBad) => make("div", { class: isBad ? "tile bad" : "tile" }, make("dt", {}, name), make("dd", {}, value), make("dd", { class: "note" }, note));

/** Returns the tile of the leases: how many are open, and what they have saved. */
function leaseTile({ held, hits, refusals, calls_saved: saved, used_units: used, returned_units: returned, expired_units: expired }) {
  const number = (count) => count.toLocaleString("en");
  return tile("leases", `${number(held)} open`, `${number(hits + refusals)} decisions here, ${number(saved)} calls of the store saved; units: ${number(used)} used, ${number(returned)} returned, ${number(expired)} expired`, false);
}

/** The largest number of limits that are listed for a rule. */
const MAX_LIMITS = 8;

/** Returns the mark of a limit whose keys this server leases, or null. */
const leasedMark = ({ leased }) => (leased ? make("small", {}, "leased") : null);

/** Returns the limits that a rule can charge, with their names if there are several. */
function limitTexts(limits) {
  const [only] = limits;
  if (limits.length === 1) return make("span", {}, make("code", {}, only.limit ?? only.limit_name), leasedMark(only));
  const lines = limits.slice(0, MAX_LIMITS).map((own) => make("span", { class: "line" }, make("code", {}, own.limit ? `${own.limit_name}: ${own.limit}` : own.limit_name), leasedMark(own)));
  const rest = limits.length - lines.length;
  return make("span", {}, ...lines, rest > 0 ? `and ${rest} more` : null);
}

/** Returns a rate per second, and a total. */
function rate(perSecond, total) {
  return make("span", { class: "number" }, perSecond === undefined ? "…" : perSecond.toFixed(1), make("small", {}, `${total.toLocaleString("en")} in total`));
}

/** A table with a title. A row whose content does not change keeps its elements, so that its button stays clickable. */
class Table {
  constructor(title, columns) {
    this.columns = columns;
    this.body = make("tbody", { role: "rowgroup" });
    const heads = columns.map((name) => make("th", { scope: "col", role: "columnheader" }, name));
    // The roles are explicit, because on a phone the CSS does not lay the elements out as a table.
    this.element = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, make("table", { class: "stacked", role: "table", "aria-label": title },
      make("caption", {}, title), make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)), this.body));
  }

  /** Sets the rows: a list of pairs of a row's id and its cells. Shows the text `none` if there are no rows. */
  rows(all, none = "") {
    const wanted = all.length ? all : [["", [none]]];
    while (this.body.rows.length > wanted.length) this.body.deleteRow(-1);
    wanted.forEach(([id, cells], at) => this.row(at, id, cells));
  }

  row(at, id, cells) {
    const content = [id, ...cells.map((cell) => cell.textContent ?? cell)].join("\u{0}");
    const row = this.body.rows[at] ?? this.body.appendChild(make("tr", { role: "row" }));
    if (row.content === content) return;
    row.content = content;
    const span = cells.length === 1 ? this.columns.length : null;
    row.replaceChildren(...cells.map((cell, column) => make("td", { role: "cell", colspan: span, "data-label": span ? null : this.columns[column] }, cell)));
  }
}
