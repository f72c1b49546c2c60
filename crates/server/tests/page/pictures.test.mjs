// The pictures show the server's decisions after every change of parameters. These tests run the page's drawing code
// without a browser.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { CARDS, JOBS } from "./cards.mjs";
import { Server, end } from "./harness.mjs";

const element = () => ({ setAttribute() {}, append() {}, addEventListener() {} });
globalThis.document = { createElement: element, createElementNS: element };
const { picture } = await import("../../web/pictures.js");

let server;
before(async () => { server = await Server.start(); });
after(end);

/** Yields pseudorandom numbers from 0 to 1, the same in every run. */
function* numbers(seed) {
  for (let state = seed; ; ) {
    state = (state * 1_664_525 + 1_013_904_223) % 2 ** 32;
    yield state / 2 ** 32;
  }
}

const pick = (random, all) => all[Math.floor(random.next().value * all.length)];

/** Returns random valid parameters of an algorithm. */
function parameters(random, { id }) {
  const size = pick(random, [1, 3, 10, 21, 50]);
  const seconds = pick(random, [0.1, 0.123456789, 2.05, 4.1, 10, 60]);
  const rate = pick(random, [0.01, 0.5, 1, 3.3333333, 20]);
  switch (id) {
    case "concurrency": return { maxConcurrent: size, holdSeconds: seconds };
    case "token-bucket": return { maxTokens: size, refillRate: rate };
    case "leaky-bucket": return { capacity: size, leakRate: rate, mode: pick(random, ["policing", "shaping"]) };
    default: return { maxRequests: size, windowSeconds: seconds };
  }
}

/** Returns a function that sends requests to the playground in a new session. */
async function session() {
  let cookie = "";
  return async (path, body) => {
    const response = await fetch(`${server.url}/api/rate-limit/${path}`, { method: "POST", headers: { "content-type": "application/json", cookie }, body: JSON.stringify(body) });
    cookie ||= response.headers.getSetCookie()[0].split(";")[0];
    assert.equal(response.status, 200);
    return response.json();
  };
}

for (const card of CARDS) {
  test(`the picture of ${card.title} shows the remaining quota`, async () => {
    const random = numbers(card.title.length);
    for (let round = 0; round < 12; round += 1) {
      const send = await session();
      let config = parameters(random, card);
      for (let step = 0; step < 12; step += 1) {
        if (random.next().value < 0.4) config = parameters(random, card);
        await send(`${card.id}/burst`, { config, count: pick(random, [1, 2, 7, 30]) });
        const view = (await send("state", { config: { [card.id]: config } })).algorithms[card.id];
        const { left, words } = picture(card.id, view, view.now_us);
        assert.equal(left, view.remaining, `${JSON.stringify(view)}: ${words}`);
        assert.doesNotMatch(words, /-\d|NaN|Infinity|undefined/);
      }
    }
  });
}

for (const card of [...CARDS, JOBS]) {
  test(`the picture of ${card.title} shows the held units`, async () => {
    const random = numbers(card.title.length + 1);
    for (let round = 0; round < 12; round += 1) {
      const send = await session();
      let config = { ...parameters(random, card), mode: "policing" };
      const open = [];
      for (let step = 0; step < 12; step += 1) {
        if (random.next().value < 0.2) config = { ...parameters(random, card), mode: "policing" };
        if (card !== JOBS && random.next().value < 0.3) await send(`${card.id}/burst`, { config, count: pick(random, [1, 2, 7]) });
        const { hold } = await send(`${card.id}/reserve`, { config, units: pick(random, [1, 2, 5]), seconds: pick(random, [0.1, 1, 60]) });
        if (hold !== null) open.push(hold);
        if (random.next().value < 0.4 && open.length) await send(`${card.id}/settle`, { hold: open.shift(), used: pick(random, [0, 1, 3, 40]) });
        const view = (await send("state", { config: { [card.id]: config } })).algorithms[card.id];
        const held = view.holds.reduce((sum, { units }) => sum + units, 0);
        const { left, words } = picture(card.id, view, view.now_us);
        assert.equal(left, view.remaining, `${JSON.stringify(view)}: ${words}`);
        if (card !== JOBS) assert.equal(words.includes(`${held} held`), held > 0, words);
        assert.doesNotMatch(words, /-\d|NaN|Infinity|undefined/);
      }
    }
  });
}

test("a hold that expires between two answers is drawn as spent from its expiry on", () => {
  const nowUs = 1_800_000_000_000_000;
  const decides = { window_us: 10_000_000, per_second: 1, hold_us: 10_000_000, shaping: false };
  const view = (state) => ({ limit: 10, decides, state, now_us: nowUs, holds: [{ hold: 1, units: 3, expires_us: nowUs + 2_000_000 }] });
  const at = (id, state, seconds) => picture(id, view(state), nowUs + seconds * 1_000_000);
  for (const [id, state, before, after, later] of [
    // The state before and after the expiry at 2 s, and the units that are left at 5 s.
    ["fixed-window", { window: { start_us: nowUs, spent: 1 } }, "1 of 10 spent and 3 held", "4 of 10 spent in", 6],
    ["sliding-window-log", { entries: [nowUs] }, "1 of 10 in the last 10 s, and 3 held", "4 of 10 in the last 10 s", 6],
    ["sliding-window-counter", { pair: { start_us: nowUs, current: 1, previous: 0 } }, "1 in the current window, and 3 held", "and 4 in the current window", 6],
    // One spent unit comes back in each second. Held units do not.
    ["token-bucket", { level: 4 }, "4.0 of 10 tokens, and 3 held", "5.0 of 10 tokens", 8],
    ["leaky-bucket", { level: 4 }, "3.0 of 10 in the bucket, and 3 held", "5.0 of 10 in the bucket", 8],
    ["concurrency", "held_only", "3 of 10 places taken, the next expires in 1.0 s", "0 of 10 places taken", 10],
  ]) {
    assert.ok(at(id, state, 1).words.includes(before), `${id}: ${at(id, state, 1).words}`);
    assert.ok(at(id, state, 2).words.includes(after), `${id}: ${at(id, state, 2).words}`);
    assert.equal(at(id, state, 5).left, later, id);
  }
  assert.equal(at("fixed-window", { window: { start_us: nowUs, spent: 1 } }, 10).left, 10, "a new window");
  assert.equal(at("sliding-window-log", { entries: [nowUs] }, 12).left, 10, "a window after the expiry");
});
