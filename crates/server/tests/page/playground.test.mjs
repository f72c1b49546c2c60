// The Playground view: the buttons and fields of all cards work, and the cards show the API's answers.

import assert from "node:assert/strict";
import { before } from "node:test";

import { CARDS, Card, JOBS, secondsIn, textsUntil } from "./cards.mjs";
import { Server, eventually } from "./harness.mjs";
import { visits } from "./visits.mjs";

let server;
before(async () => { server = await Server.start(); });
const on = (name, body, options = {}) => visits(name, () => server, options, body);
const MOVING = { reducedMotion: "no-preference" };

const HEADERS = ["ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

/** Asserts that a card shows an answer, and the state of the session after it. */
async function assertShows(visit, card, { sent, json, headers }, names) {
  const last = [json].flat().at(-1);
  await eventually(async () => {
    assert.match(await card.field("left").textContent(), new RegExp(`\\b${last.remaining} of ${last.limit}\\b`));
  });
  assert.deepEqual(await card.shownHeaders(), Object.fromEntries(names.map((name) => [name, headers[name]])), card.id);
  await eventually(async () => {
    const state = (await visit.state({ [card.id]: sent.config })).algorithms[card.id];
    assert.equal(await card.field("remaining").textContent(), `${state.remaining} of ${state.limit} left`);
  });
}

/** Runs the same test on every card, in one window. */
const onEach = (name, body) => on(name, async (visit) => {
  for (const kind of CARDS) await body(visit, new Card(visit, kind), kind);
});

onEach("a card shows the API's answer to a request", async (visit, card, { slow, id }) => {
  assert.equal(await card.field("verdict").textContent(), "No request sent yet.", id);
  await card.set(slow);
  const answer = await card.send();
  assert.deepEqual([answer.json.allowed, answer.json.remaining, answer.json.limit], [true, 9, 10], id);
  await assertShows(visit, card, answer, HEADERS);
  assert.equal(await card.field("verdict").textContent(), "Allowed", id);
  assert.equal(await card.field("retry").textContent(), "", id);
  assert.equal(await card.field("status").textContent(), "200 OK", id);
});

onEach("a card shows which requests of a burst are allowed, and how long a refused request has to wait", async (visit, card, { slow, size, id }) => {
  await card.set({ [size]: 4, ...slow });
  const burst = await card.burst();
  assert.equal(burst.sent.count, 10);
  assert.deepEqual(burst.json.map(({ allowed }) => allowed), [true, true, true, true, false, false, false, false, false, false], id);
  await assertShows(visit, card, burst, [...HEADERS, "retry-after"]);
  assert.equal(await card.field("verdict").textContent(), "4 of 10 allowed", id);
  assert.deepEqual(await card.dots.evaluateAll((dots) => dots.map((dot) => dot.getAttribute("aria-label"))),
    burst.json.map(({ allowed }) => (allowed ? "allowed" : "refused")), id);

  const refused = await card.send();
  assert.equal(refused.json.allowed, false, id);
  await eventually(async () => assert.equal(await card.field("verdict").textContent(), "Refused", id));
  assert.equal(await card.dots.count(), 0, "only a burst has dots");
  assert.equal(await card.field("status").textContent(), "429 Too Many Requests", id);
  const { retryAfter } = refused.json;
  const shown = secondsIn(await card.field("retry").textContent());
  // Minutes are rounded up.
  assert.ok(shown > retryAfter - 5 && shown < retryAfter + 60, `${id}: ${shown} s instead of ${retryAfter}`);
  await assertShows(visit, card, refused, [...HEADERS, "retry-after"]);
});

onEach("changed parameters are drawn at once and used by the next request", async (visit, card, { slow, size, id }) => {
  const chosen = { [size]: 7, ...Object.fromEntries(Object.keys(slow).map((name) => [name, 120])) };
  await card.set(chosen);
  await eventually(async () => assert.equal(await card.field("remaining").textContent(), "7 of 7 left", id));
  const mode = id === "leaky-bucket" ? { mode: "policing" } : {};
  assert.deepEqual((await card.send()).sent, { config: { ...chosen, ...mode } });
  assert.deepEqual((await card.burst()).sent, { config: { ...chosen, ...mode }, count: 10 });
});

on("pictures move without new answers, and have a text for screen readers", async (visit) => {
  const cards = CARDS.map((kind) => new Card(visit, kind));
  for (const card of cards) await card.burst();
  await new Card(visit, JOBS).start();
  for (const card of cards) await eventually(async () => assert.match(await card.picture.getAttribute("aria-label"), /^[\d.]+ of/, card.id));
  // From now on the page gets no more answers.
  const held = [];
  await visit.page.route("**/api/rate-limit/state", (route) => held.push(route));
  await eventually(() => assert.ok(held.length > 0));
  const drawn = await visit.page.locator("svg.picture").evaluateAll((all) => all.map((svg) => svg.innerHTML));
  assert.equal(drawn.length, CARDS.length + 1);
  await visit.page.waitForFunction((drawn) => [...document.querySelectorAll("svg.picture")].every((svg, at) => svg.innerHTML !== drawn[at]), drawn);
  for (const route of held) await route.continue();
}, MOVING);

onEach("invalid parameters are reported and not sent", async (visit, card, { slow, size, id }) => {
  const requests = [];
  visit.page.on("request", (request) => request.url().includes(card.path) && requests.push(request.postDataJSON()));
  const [other] = Object.keys(slow);
  for (const [name, value] of [[size, "0"], [size, "1.5"], [size, "1001"], [other, "e"], [other, ""], [other, "5000"]]) {
    const good = await card.input(name).inputValue();
    await card.input(name).fill(value === "e" ? "" : value);
    if (value === "e") await card.input(name).press("e");
    await (value === "" ? card.sendButton : card.burstButton).click();
    assert.match(await card.problem.textContent(), /[\d.]+ to \d+/, `${id} ${name} ${value}`);
    assert.equal(await card.input(name).getAttribute("aria-invalid"), "true", `${id} ${name} ${value}`);
    await card.input(name).fill(good);
  }
  await card.send();
  await eventually(async () => assert.equal(await card.problem.count(), 0));
  assert.equal(await card.input(other).getAttribute("aria-invalid"), "false", id);
  assert.equal(requests.length, 1, "only the valid parameters were sent");
});

on("a bucket refills on the page as fast as on the server", async (visit) => {
  const [kind] = CARDS.filter(({ id }) => id === "token-bucket");
  const card = new Card(visit, kind);
  await card.set({ refillRate: 4 });
  const { sent } = await card.burst();
  for (const wanted of [2, 4, 6]) {
    await eventually(async () => assert.ok((await card.left()) >= wanted));
    const before = await card.left();
    const { remaining } = (await visit.state({ "token-bucket": sent.config })).algorithms["token-bucket"];
    const after = await card.left();
    assert.ok(before <= remaining && remaining <= after + 1, `${before}, then ${remaining}, then ${after}`);
  }
}, MOVING);

on("the wait counts down, and then a request is allowed", async (visit) => {
  const card = new Card(visit, CARDS[3]);
  // A wait of 4 s: a busy browser draws the page only a few times a second.
  await card.set({ maxTokens: 1, refillRate: 0.25 });
  const { json } = await card.burst();
  const texts = await textsUntil(card.field("retry"), /now/);
  assert.match(texts.pop(), /try again now/);
  const seconds = texts.map(secondsIn);
  assert.ok(seconds.length > 5, `the wait counts down: ${texts}`);
  assert.deepEqual(seconds, [...seconds].sort((a, b) => b - a), "the wait never grows");
  assert.ok(seconds[0] <= json.at(-1).retryAfter + 0.001, `${seconds[0]}`);
  assert.equal((await card.send()).json.allowed, true);
}, MOVING);

on("requests of a shaped burst leave one by one", async (visit) => {
  const card = new Card(visit, CARDS[4]);
  await card.set({ mode: "shaping", capacity: 6, leakRate: 2 });
  const { json } = await card.burst();
  const delays = json.map(({ delay }) => delay);
  assert.deepEqual([delays[0], ...delays.slice(6)], [0, null, null, null, null]);
  // Half a second for each earlier request, less the time between the first request of the burst and this one.
  delays.slice(1, 6).forEach((delay, at) => assert.ok(delay <= (at + 1) / 2 && delay > at / 2, `${delays}`));
  const queued = () => card.picture.evaluate((svg) => new Promise((resolve) => {
    const counts = [];
    const check = () => {
      const count = svg.querySelectorAll("circle.later").length;
      if (count !== counts.at(-1)) counts.push(count);
      if (count === 0 && counts.length > 1) resolve(counts);
      else requestAnimationFrame(check);
    };
    check();
  }));
  const counts = (await queued()).filter((count, at) => at > 0 || count > 0);
  assert.ok(counts[0] >= 4, `${counts}`);
  assert.deepEqual(counts, Array.from({ length: counts[0] + 1 }, (_, at) => counts[0] - at), "one by one");
}, MOVING);

on("a card shows when a shaped request leaves, and that it has left", async (visit) => {
  const card = new Card(visit, CARDS[4]);
  // A delay of 2 s: a busy browser shows the answer late.
  await card.set({ mode: "shaping", leakRate: 0.5 });
  assert.equal((await card.send()).json.delay, 0);
  assert.equal(await card.field("verdict").textContent(), "Allowed");
  const { json } = await card.send();
  assert.ok(json.delay > 0 && json.delay <= 2, `${json.delay}`);
  assert.equal(await card.field("verdict").textContent(), "Allowed, delayed");
  const texts = await textsUntil(card.field("retry"), /has left/);
  // The text has tenths of a second, rounded up.
  assert.ok(secondsIn(texts[0]) <= Math.ceil(json.delay * 10) / 10 + 0.001, texts[0]);
  // The mode can be changed back.
  await card.set({ mode: "policing" });
  assert.equal((await card.send()).json.delay, null);
}, MOVING);

on("every click is answered when there are many quick clicks", async (visit) => {
  const card = new Card(visit, CARDS[0]);
  await card.set(CARDS[0].slow);
  const answered = [];
  visit.page.on("response", (response) => response.url().endsWith(card.path) && answered.push(response.status()));
  for (let at = 0; at < 7; at += 1) await card.sendButton.click({ noWaitAfter: true });
  await eventually(() => assert.equal(answered.length, 7));
  await eventually(async () => assert.equal(await card.left(), 3));
});

on("a card says so while the limit of earlier parameters decides", async (visit) => {
  const card = new Card(visit, CARDS[1]);
  await card.set(CARDS[1].slow);
  await card.burst();
  await card.set({ windowSeconds: 0.1 });
  await eventually(async () => assert.match(await card.field("carried").textContent(), /The earlier limit decides until its charges have expired: sliding-window-log limit=10 window=1h/));
  assert.equal(await card.left(), 0);
  assert.equal((await card.send()).json.allowed, false);
  await visit.page.getByRole("button", { name: "Reset All Counters" }).click();
  await eventually(async () => assert.equal(await card.left(), 10));
  assert.equal(await card.field("carried").textContent(), "");
});

on("parameters and counters survive a reload", async (visit) => {
  const card = new Card(visit, CARDS[4]);
  await card.set({ mode: "shaping", capacity: 4, leakRate: 0.01 });
  await card.burst();
  await visit.reload();
  await eventually(async () => assert.equal(await card.left(), 0));
  const kept = await Promise.all(["mode", "capacity", "leakRate"].map((name) => card.input(name).inputValue()));
  assert.deepEqual(kept, ["shaping", "4", "0.01"]);
  await card.picture.and(visit.page.getByRole("img", { name: "3 waiting, space for 0 of 4" })).waitFor();
});

on("buttons for all cards send to every algorithm", async (visit) => {
  const requests = [];
  visit.page.on("response", (response) => {
    const [, id, burst] = /rate-limit\/([a-z]+-[a-z-]+)(\/burst)?$/.exec(response.url()) ?? [];
    if (id) requests.push(`${id}${burst ?? ""}`);
  });
  for (const [name, what, verdict] of [["Send to all", "", /^Allowed/], ["Burst 10 to all", "/burst", /of 10 allowed$/]]) {
    requests.length = 0;
    await visit.page.getByRole("button", { name, exact: true }).click();
    for (const kind of CARDS) await new Card(visit, kind).field("verdict").filter({ hasText: verdict }).waitFor();
    assert.deepEqual(requests.sort(), CARDS.map(({ id }) => `${id}${what}`).sort());
  }
});

on("Reset All Counters resets every card", async (visit) => {
  for (const kind of CARDS) {
    const card = new Card(visit, kind);
    await card.set(kind.slow);
    await card.burst();
    await eventually(async () => assert.equal(await card.left(), 0, kind.id));
  }
  await visit.answerTo("/api/rate-limit/reset", () => visit.page.getByRole("button", { name: "Reset All Counters" }).click());
  for (const kind of CARDS) {
    const card = new Card(visit, kind);
    await eventually(async () => assert.equal(await card.left(), 10, kind.id));
    assert.equal(await card.field("verdict").textContent(), "No request sent yet.", "the last answer is removed");
    assert.equal((await visit.state()).algorithms[kind.id].remaining, 10);
  }
});
