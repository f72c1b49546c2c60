// The open holds on a card, and the fields to reserve and settle units.

import { reasonOf, send } from "./api.js";
import { duration, make } from "./dom.js";

/** The largest number of units that the server accepts. */
const MAX_UNITS = 1000;
/** The units and the seconds in the fields at first. */
const [UNITS, SECONDS] = [3, 10];

/** Returns the effect of a settlement in words. */
function effectOf({ settled, ended, charged, excess, cut }, isJob) {
  if (isJob) return settled ? "The job has ended, and its place is free." : "The job had lost its place before.";
  if (!settled) return ended === "expired" ? "The hold had expired, and all of its units were spent." : "The hold had ended before.";
  const beyond = excess ? `, ${excess} more than held` : "";
  return `Settled: ${charged} spent${beyond}${cut ? `; ${cut} were not charged, because at most one whole limit is charged beyond a hold` : ""}.`;
}

/** The part of a card that reserves units, and lists the open holds with a button to settle each. */
export class HoldPanel {
  /**
   * `algorithm` is that of the card. `onreserve` is called with the units and the seconds of a reservation, and `onsettled`
   * after a settlement. `onproblem` is called with the text of a problem in a field or in an answer, or with null to remove it;
   * `onfailure` with the error when the server does not answer.
   */
  constructor(algorithm, { onreserve, onsettled, onproblem, onfailure }) {
    Object.assign(this, { algorithm, onreserve, onsettled, onproblem, onfailure });
    const { id, title } = algorithm;
    this.isJob = Boolean(algorithm.jobs);
    /** The listed holds by number. */
    this.rows = new Map();
    this.list = make("ul", { class: "open", "aria-label": this.isJob ? "running jobs" : "open holds" });
    this.effect = make("p", { class: "note", role: "status", "data-field": "settled" });
    this.units = number(`${id}-units`, 1, 1, MAX_UNITS, UNITS);
    this.seconds = number(`${id}-seconds`, "any", 0.1, 3600, SECONDS);
    this.controls = make("div", { class: "parameters" },
      make("label", { for: this.units.id }, "units", this.units), make("label", { for: this.seconds.id }, "hold for (s)", this.seconds),
      make("button", { type: "button", class: "quiet", onclick: () => this.reserve() }, "Reserve"));
    this.content = make("div", { class: "hold-panel", role: "group", "aria-label": `Holds of ${title}` }, this.isJob ? null : this.controls, this.list, this.effect);
    this.unsupported = make("p", { class: "note", hidden: true }, "Units of a shaping bucket cannot be held: held units have no position in its queue.");
    // Always present, because it has a row of its own in the grid of the card.
    this.element = make("div", {}, this.content, this.unsupported);
  }

  /** Shows whether units can be held. Units of a shaping bucket cannot. */
  setSupported(isSupported) {
    this.content.hidden = !isSupported;
    this.unsupported.hidden = isSupported;
  }

  reserve() {
    for (const input of [this.units, this.seconds]) {
      const isGood = input.value.trim() !== "" && input.checkValidity();
      input.setAttribute("aria-invalid", String(!isGood));
      if (!isGood) return this.onproblem(`${input.parentElement.firstChild.data}: enter a number, ${input.min} to ${input.max}`);
    }
    return this.onreserve(Number(this.units.value), Number(this.seconds.value));
  }

  /** Settles a hold with the used units. */
  async settle(hold, used) {
    try {
      const answer = await send("POST", `/api/rate-limit/${this.algorithm.id}/settle`, { hold, used });
      this.onproblem(answer.ok ? null : reasonOf(answer));
      if (!answer.ok) return;
      this.effect.textContent = effectOf(answer.json, this.isJob);
      await this.onsettled();
    } catch (error) {
      this.onfailure(error);
    }
  }

  /** Removes the effect of the last settlement. */
  clear() {
    this.effect.textContent = "";
  }

  /** Lists the holds that are open at a time of the server's clock. Rows stay in place, so that they keep the focus. */
  draw(holds, nowUs) {
    const open = holds.filter((hold) => hold.hold !== null && hold.expires_us > nowUs);
    const numbers = new Set(open.map(({ hold }) => hold));
    for (const [number, { row }] of this.rows) {
      if (!numbers.has(number)) this.remove(number, row);
    }
    for (const hold of open) {
      const { words } = this.rows.get(hold.hold) ?? this.add(hold);
      const left = duration((hold.expires_us - nowUs) / 1e6);
      const text = this.isJob ? `job ${hold.hold}: ${left} left` : `${hold.units} held: ${left} left`;
      if (words.textContent !== text) words.textContent = text;
    }
  }

  add({ hold, units }) {
    const words = make("span", {});
    const used = number(`${this.algorithm.id}-used-${hold}`, 1, 0, MAX_UNITS, units);
    const settle = () => {
      const isGood = used.value.trim() !== "" && used.checkValidity();
      used.setAttribute("aria-invalid", String(!isGood));
      return isGood ? this.settle(hold, Number(used.value)) : this.onproblem(`used: enter a whole number, 0 to ${MAX_UNITS}`);
    };
    const button = make("button", { type: "button", class: "quiet small", "aria-label": this.isJob ? `End job ${hold}` : `Settle hold ${hold}`, onclick: settle }, this.isJob ? "End" : "Settle");
    const row = make("li", { "data-hold": String(hold) }, words, this.isJob ? null : make("label", { for: used.id }, "used", used), button);
    this.list.append(row);
    this.rows.set(hold, { row, words });
    return this.rows.get(hold);
  }

  /** Removes a row. If it has the focus, the button of the next row gets it, or the first button of the card. */
  remove(number, row) {
    const hadFocus = row.contains(document.activeElement);
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    this.rows.delete(number);
    if (hadFocus) (next ?? this.element.closest("article")).querySelector("button")?.focus();
  }
}

function number(id, step, min, max, value) {
  return make("input", { id, type: "number", step, min, max, value, inputmode: "decimal", required: true });
}
