// A key: how it stands, and to forget it.

import { ask, reasonOf } from "./api.js";
import { duration, make } from "./dom.js";

const RESET = "Reset this key";
const SURE = "Sure? Reset it";

export class Lookup {
  /** Operators are asked for by `token`, which may be null. */
  constructor(token) {
    this.token = token;
    /** The key that was looked up last, and how the field shows it. */
    this.looked = { key: "", shown: "" };
    const input = (id, placeholder) => make("input", {
      id, type: "text", required: true, spellcheck: "false", autocomplete: "off", placeholder, class: "wide", oninput: () => this.ask(RESET),
    });
    [this.by, this.key] = [input("lookup-by", "api/per-client"), input("lookup-key", "ip=203.0.113.9")];
    this.answer = make("p", { role: "status", "data-field": "lookup" });
    /** How the key stands under each limit: one, or as many as a rule may spend for it. */
    this.standings = make("ul", { class: "standings", "data-field": "standings" });
    this.forget = make("button", { type: "button", class: "quiet", onclick: () => this.reset(), onblur: () => this.ask(RESET) }, RESET);
    this.element = make("form", { class: "stack", onsubmit: (event) => this.submit(event) },
      make("h2", {}, "Look up a key"),
      make("div", { class: "parameters" }, make("label", { for: "lookup-by" }, "rule or limit", this.by), make("label", { for: "lookup-key" }, "key", this.key),
        make("button", { class: "act" }, "Look up"), this.forget),
      make("div", {}, this.answer, this.standings));
  }

  /** Writes on the button what it does next. */
  ask(words) {
    this.forget.textContent = words;
  }

  /** The key that is meant: the one that was looked up, of which the field may show a part, or what was typed. */
  meant() {
    return this.key.value === this.looked.shown ? this.looked.key : this.key.value;
  }

  submit(event) {
    event.preventDefault();
    this.look(this.by.value, this.meant());
  }

  async look(by, key) {
    this.looked = { key, shown: shown(key) };
    [this.by.value, this.key.value] = [by, this.looked.shown];
    await this.tell("GET", (own) => {
      if (!own.limits) {
        this.standings.replaceChildren(make("li", {}, meter(own, "what remains")));
        return standing(own);
      }
      const told = own.limits.length > 1 ? own.limits : own.limits.filter(({ decision }) => decision);
      this.standings.replaceChildren(...told.map((under) => item(under, own)));
      return summary(own);
    });
  }

  /** Asked twice: it cannot be taken back. */
  async reset() {
    if (!this.element.reportValidity()) return;
    if (this.forget.textContent === RESET) return this.ask(SURE);
    this.ask(RESET);
    await this.tell("DELETE", () => "It is forgotten, and may spend all of its limit again.");
  }

  async tell(method, words) {
    this.standings.replaceChildren();
    try {
      const path = `/v1/limits/${encodeURIComponent(this.by.value)}/keys/${encodeURIComponent(this.meant())}`;
      const answer = await ask(method, path, undefined, this.token());
      this.answer.textContent = answer.ok ? words(answer.json) : reasonOf(answer);
    } catch (error) {
      this.answer.textContent = error.message;
    }
    // It may be far from the button that asked.
    this.answer.scrollIntoView({ block: "nearest" });
  }
}

/** The sentence above the list of limits of a rule's key. */
function summary({ rule, limits, last_refused_under: last }) {
  const [only] = limits;
  if (limits.length === 1 && only.decision) return `${standing(only.decision)}, under ${only.limit_name}`;
  if (limits.length === 1) return WITHOUT_LIMIT[only.limit_name];
  const known = last ? `this server last refused the key under ${last}` : "this server does not know which applied last";
  return `${rule} spends one of these limits, by the tier of the request; ${known}`;
}

const WITHOUT_LIMIT = { allow: "allowed: this rule does not limit the key", block: "blocked: this rule refuses every request of the key" };

/** How a rule's key stands under one limit. */
function item({ limit_name: name, default: isDefault, tiers, decision }, { limits, last_refused_under: last }) {
  if (limits.length === 1) return make("li", {}, meter(decision, "what remains"));
  const why = [...(isDefault ? ["without a tier"] : []), ...(tiers.length ? [`tier ${tiers.join(", ")}`] : [])].join("; ");
  const words = decision ? standing(decision) : WITHOUT_LIMIT[name];
  return make("li", {}, make("p", {}, make("strong", {}, name), ` (${why})${name === last ? ", last refused" : ""}: ${words}`), decision && meter(decision, `what remains under ${name}`));
}

const meter = ({ limit, remaining }, label) => make("meter", { min: 0, max: limit, value: remaining, "aria-label": label });

/** How a key stands, in words. */
function standing(own) {
  const wait = own.allowed ? "" : own.retry_after_us === null ? "; refused, and waiting does not help" : `; refused for ${duration(own.retry_after_us / 1e6)}`;
  const whole = own.reset_after_us > 0 ? `; all is back in ${duration(own.reset_after_us / 1e6)}` : "";
  return `${own.remaining} of ${own.limit} remain${wait}${whole}`;
}

/** A key as it can be shown to whoever stands by: what does not print as what it is, and of an API key the beginning. */
export function shown(key) {
  return escaped(key.replace(/(?<=(?:^|,)api_key=[^,]{4})[^,]+/g, "…"));
}

function escaped(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}\\]/gu, (letter) => (letter === "\\" ? "\\\\" : `\\u{${letter.codePointAt(0).toString(16)}}`));
}
