// Looks up the state of a key, and resets it.

import { reasonOf, send } from "./api.js";
import { duration, make } from "./dom.js";

const RESET = "Reset this key";
const CONFIRM = "Confirm the reset";

export class Lookup {
  /** `token` is a function that returns the operator token, or null if the server needs none. */
  constructor(token) {
    this.token = token;
    /** The key that was looked up last, and its text in the field. */
    this.lookedUp = { key: "", shown: "" };
    const input = (id, placeholder) => make("input", {
      id, type: "text", required: true, spellcheck: "false", autocomplete: "off", placeholder, class: "wide", oninput: () => this.labelReset(RESET),
    });
    [this.by, this.key] = [input("lookup-by", "api/per-client"), input("lookup-key", "ip=203.0.113.9")];
    this.answer = make("p", { role: "status", "data-field": "lookup" });
    /** The key's state under each limit: one limit, or all that a rule can charge for the key. */
    this.states = make("ul", { class: "limit-states", "data-field": "states" });
    this.resetButton = make("button", { type: "button", class: "quiet", onclick: () => this.reset(), onblur: () => this.labelReset(RESET) }, RESET);
    this.element = make("form", { class: "stack", onsubmit: (event) => this.submit(event) },
      make("h2", {}, "Look up a key"),
      make("div", { class: "parameters" }, make("label", { for: "lookup-by" }, "rule or limit", this.by), make("label", { for: "lookup-key" }, "key", this.key),
        make("button", { class: "act" }, "Look up"), this.resetButton),
      make("div", {}, this.answer, this.states));
  }

  /** Sets the label of the reset button, which says what the next click does. */
  labelReset(words) {
    this.resetButton.textContent = words;
  }

  /** Returns the key in the field. The field can show a part of the key that was looked up last. */
  keyInField() {
    return this.key.value === this.lookedUp.shown ? this.lookedUp.key : this.key.value;
  }

  submit(event) {
    event.preventDefault();
    this.lookUp(this.by.value, this.keyInField());
  }

  /** Shows the state of a key under a rule or a limit. */
  async lookUp(by, key) {
    this.lookedUp = { key, shown: printable(key) };
    [this.by.value, this.key.value] = [by, this.lookedUp.shown];
    await this.request("GET", (found) => {
      if (!found.limits) {
        this.states.replaceChildren(make("li", {}, meter(found, "remaining")));
        return stateText(found);
      }
      const listed = found.limits.length > 1 ? found.limits : found.limits.filter(({ decision }) => decision);
      this.states.replaceChildren(...listed.map((limit) => item(limit, found)));
      return summary(found);
    });
  }

  /** Resets the key on the second click, because a reset cannot be undone. */
  async reset() {
    if (!this.element.reportValidity()) return;
    if (this.resetButton.textContent === RESET) return this.labelReset(CONFIRM);
    this.labelReset(RESET);
    await this.request("DELETE", () => "The key was reset, and its whole limit is available again.");
  }

  /** Sends a request for the key in the field, and shows `words` of the answer, or why it failed. */
  async request(method, words) {
    this.states.replaceChildren();
    try {
      const path = `/v1/limits/${encodeURIComponent(this.by.value)}/keys/${encodeURIComponent(this.keyInField())}`;
      const answer = await send(method, path, undefined, this.token());
      this.answer.textContent = answer.ok ? words(answer.json) : reasonOf(answer);
    } catch (error) {
      this.answer.textContent = error.message;
    }
    // The answer can be far from the button that was clicked.
    this.answer.scrollIntoView({ block: "nearest" });
  }
}

/** Returns the sentence above the list of limits of a rule's key. */
function summary({ rule, limits, last_refused_under: last }) {
  const [only] = limits;
  if (limits.length === 1 && only.decision) return `${stateText(only.decision)}, under ${only.limit_name}`;
  if (limits.length === 1) return WITHOUT_LIMIT[only.limit_name];
  const refusal = last ? `this server last refused the key under ${last}` : "this server has no record of a refusal of the key";
  return `${rule} charges one of these limits, which depends on the tier of the request; ${refusal}`;
}

/** The texts of rules that allow or refuse every request of a key. */
const WITHOUT_LIMIT = { allow: "allowed: this rule does not limit the key", block: "blocked: this rule refuses every request of the key" };

/** Returns the list item with the state of a rule's key under one limit. */
function item({ limit_name: name, default: isDefault, tiers, decision }, { limits, last_refused_under: last }) {
  if (limits.length === 1) return make("li", {}, meter(decision, "remaining"));
  const why = [...(isDefault ? ["without a tier"] : []), ...(tiers.length ? [`tier ${tiers.join(", ")}`] : [])].join("; ");
  const words = decision ? stateText(decision) : WITHOUT_LIMIT[name];
  return make("li", {}, make("p", {}, make("strong", {}, name), ` (${why})${name === last ? ", last refused" : ""}: ${words}`), decision && meter(decision, `remaining under ${name}`));
}

const meter = ({ limit, remaining }, label) => make("meter", { min: 0, max: limit, value: remaining, "aria-label": label });

/** Returns the state of a key in words. */
function stateText({ allowed, remaining, limit, retry_after_us: retryUs, reset_after_us: resetUs }) {
  const wait = allowed ? "" : retryUs === null ? "; refused, and waiting does not help" : `; refused for ${duration(retryUs / 1e6)}`;
  const reset = resetUs > 0 ? `; the whole limit is available in ${duration(resetUs / 1e6)}` : "";
  return `${remaining} of ${limit} remain${wait}${reset}`;
}

/** Returns a key in a form that is safe to show: only the beginning of an API key, and escapes for unprintable characters. */
export function printable(key) {
  return escaped(key.replace(/(?<=(?:^|,)api_key=[^,]{4})[^,]+/g, "…"));
}

function escaped(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}\\]/gu, (letter) => (letter === "\\" ? "\\\\" : `\\u{${letter.codePointAt(0).toString(16)}}`));
}
