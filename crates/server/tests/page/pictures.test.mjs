// The pictures show the server's decisions after every change of parameters. These tests run the page's drawing code
// without a browser.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { CARDS } from "./cards.mjs";
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
