// A key: how it stands, and to forget it.

import { ask, reasonOf } from "./api.js";
import { duration, make } from "./dom.js";

export class Lookup {
  /** Operators are asked for by `token`, which may be null. */
  constructor(token) {
    this.token = token;
    const input = (id, placeholder) => make("input", { id, type: "text", required: true, spellcheck: "false", autocomplete: "off", placeholder, class: "wide" });
    [this.by, this.key] = [input("lookup-by", "api/per-client"), input("lookup-key", "ip=203.0.113.9")];
    this.answer = make("p", { role: "status", "data-field": "lookup" });
    this.meter = make("meter", { min: 0, "aria-label": "what remains", hidden: true });
    this.element = make("form", { class: "stack", onsubmit: (event) => this.submit(event) },
      make("h2", {}, "Look up a key"),
      make("div", { class: "parameters" }, make("label", { for: "lookup-by" }, "rule or limit", this.by), make("label", { for: "lookup-key" }, "key", this.key),
        make("button", { class: "act" }, "Look up"), make("button", { type: "button", class: "quiet", onclick: () => this.reset() }, "Reset this key")),
      make("div", {}, this.answer, this.meter));
  }

  submit(event) {
    event.preventDefault();
    this.look(this.by.value, unescaped(this.key.value));
  }

  async look(by, key) {
    // Escaped: a field leaves out the ends of lines.
    [this.by.value, this.key.value] = [by, escaped(key)];
    await this.ask("GET", (own) => {
      [this.meter.max, this.meter.value, this.meter.hidden] = [own.limit, own.remaining, false];
      const wait = own.allowed ? "" : own.retry_after_us === null ? "; refused, and waiting does not help" : `; refused for ${duration(own.retry_after_us / 1e6)}`;
      const whole = own.reset_after_us > 0 ? `; all is back in ${duration(own.reset_after_us / 1e6)}` : "";
      return `${own.remaining} of ${own.limit} remain${wait}${whole}`;
    });
  }

  async reset() {
    if (!this.element.reportValidity()) return;
    await this.ask("DELETE", () => "It is forgotten, and may spend all of its limit again.");
  }

  async ask(method, words) {
    this.meter.hidden = true;
    try {
      const path = `/v1/limits/${encodeURIComponent(this.by.value)}/keys/${encodeURIComponent(unescaped(this.key.value))}`;
      const answer = await ask(method, path, undefined, this.token());
      this.answer.textContent = answer.ok ? words(answer.json) : reasonOf(answer);
    } catch (error) {
      this.answer.textContent = error.message;
    }
    // It may be far from the button that asked.
    this.answer.scrollIntoView({ block: "nearest" });
  }
}

/** A key as it can be shown to whoever stands by: what does not print as what it is, and of an API key the beginning. */
export function shown(key) {
  return escaped(key.replace(/(?<=(?:^|,)api_key=[^,]{4})[^,]+/g, "…"));
}

function escaped(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}\\]/gu, (letter) => (letter === "\\" ? "\\\\" : `\\u{${letter.codePointAt(0).toString(16)}}`));
}

/** The text that was escaped. What is no escape is taken as it is. */
function unescaped(text) {
  return text.replace(/\\(?:\\|u\{(0*(?:10|[\da-f])?[\da-f]{1,4})\})/gi, (_, code) => (code === undefined ? "\\" : String.fromCodePoint(parseInt(code, 16))));
}
