// Holds on the page: units are reserved and settled, and jobs start and end.

import assert from "node:assert/strict";
import { before } from "node:test";

import { CARDS, Card, JOBS, secondsIn, textsUntil } from "./cards.mjs";
import { Redis, Server, axe, eventually } from "./harness.mjs";
import { visits } from "./visits.mjs";

let server;
let onRedis;
before(async () => {
  const redis = await Redis.start();
  // A long deadline of the store, because the machine can be busy.
  [server, onRedis] = await Promise.all([Server.start(), Server.start(["--store", redis.url, "--store-deadline", "5s"])]);
});
const on = (name, body, options = {}) => visits(name, () => server, options, body);
/** Defines a test in memory and on a Redis. */
const onBoth = (name, body, options = {}) => {
  visits(`${name}, in memory`, () => server, options, body);
  visits(`${name}, on Redis`, () => onRedis, options, body);
};

const BUCKET = CARDS.find(({ id }) => id === "token-bucket");
const PHONE = { viewport: { width: 375, height: 700 }, isMobile: true, hasTouch: true };

/** Asserts the number next to the title of a card, which is also what the server says. */
async function assertLeft(visit, card, config, left) {
  await eventually(async () => assert.equal(await card.left(), left, card.id));
  assert.equal((await visit.state({ [card.id]: config })).algorithms[card.id].remaining, left, card.id);
}

onBoth("a card reserves units, shows them hatched, and settles them", async (visit) => {
  for (const kind of CARDS) {
    const card = new Card(visit, kind);
    await card.set(kind.slow);
    const { sent: { config } } = await card.send();
    const reserved = await card.reserve(3, 600);
    assert.deepEqual([reserved.sent, reserved.json.hold, reserved.json.remaining], [{ config, units: 3, seconds: 600 }, reserved.json.hold, 6], kind.id);
    assert.equal(await card.field("verdict").textContent(), "Held", kind.id);
    assert.match(await card.field("left").textContent(), /after the reservation: 6 of 10/);
    await assertLeft(visit, card, config, 6);
    await eventually(async () => assert.match(await card.picture.getAttribute("aria-label"), /\b3 held/, kind.id));
    const fills = await card.picture.locator(".held").evaluateAll((all) => all.map((shape) => shape.getAttribute("fill")));
    assert.ok(fills.length > 0 && fills.every((fill) => fill === "url(#held)"), `${kind.id}: ${fills}`);
    assert.match(await card.holds.textContent(), /^3 held: 10 min left/, kind.id);

    const settled = await card.settle(reserved.json.hold, 1);
    assert.deepEqual([settled.json.settled, settled.json.charged], [true, 1], kind.id);
    assert.equal(await card.field("settled").textContent(), "Settled: 1 spent.", kind.id);
    await assertLeft(visit, card, config, 8);
    await eventually(async () => assert.equal(await card.holds.count(), 0, kind.id));
    assert.equal(await card.picture.locator(".held").count(), 0, kind.id);
  }
});

on("a card shows a debt, a refused reservation and how long it has to wait", async (visit) => {
  const card = new Card(visit, BUCKET);
  await card.set(BUCKET.slow);
  const refused = await card.reserve(11, 600);
  assert.equal(refused.json.allowed, false);
  assert.equal(await card.field("verdict").textContent(), "Refused");
  assert.match(await card.field("retry").textContent(), /waiting does not help/);
  const { json: { hold }, sent: { config } } = await card.reserve(4, 600);
  const second = await card.reserve(8, 600);
  assert.match(await card.field("retry").textContent(), /if the holds are left to expire, try again in/);
  assert.ok(Math.abs(secondsIn(await card.field("retry").textContent()) - second.json.retryAfter) < 65);
  await card.settle(hold, 12);
  assert.equal(await card.field("settled").textContent(), "Settled: 12 spent, 8 more than held.");
  await assertLeft(visit, card, config, 0);
  await card.picture.getByText(/^[12]\.\d in debt$/).waitFor();
});

onBoth("the time of a hold counts down, and then its units are spent", async (visit) => {
  const card = new Card(visit, BUCKET);
  await card.set(BUCKET.slow);
  const { sent: { config } } = await card.reserve(3, 3);
  const texts = await textsUntil(card.element.locator(".open"), /^$/);
  const seconds = texts.filter((text) => text !== "").map(secondsIn);
  assert.ok(seconds.length > 3, `${texts}`);
  assert.deepEqual(seconds, [...seconds].sort((a, b) => b - a), "the time never grows");
  await assertLeft(visit, card, config, 7);
}, { reducedMotion: "no-preference" });

onBoth("jobs take places until they end, and a refused one shows when the next place is free", async (visit) => {
  const card = new Card(visit, JOBS);
  await card.set({ maxConcurrent: 3, holdSeconds: 900 });
  await card.visit.answerTo(`${card.path}/reserve`, () => card.element.getByRole("button", { name: "Start 10" }).click());
  await card.field("verdict").filter({ hasText: "3 of 10 started" }).waitFor();
  assert.deepEqual(await card.dots.evaluateAll((dots) => dots.slice(2, 4).map((dot) => dot.getAttribute("aria-label"))), ["started", "refused"]);
  await card.picture.and(visit.page.getByRole("img", { name: /^3 of 3 places taken, the next expires in 15 min/ })).waitFor();
  assert.equal(await card.picture.locator(".held").count(), 3);
  const refused = await card.start();
  assert.deepEqual([refused.json.allowed, refused.json.hold], [false, null]);
  assert.match(await card.field("left").textContent(), /Free places after the start: 0 of 3/);
  assert.match(await card.field("retry").textContent(), /the next place is free at the latest in 15 min/);
  assert.deepEqual((await card.holds.allTextContents()).map((text) => /^job \d+/.exec(text)[0]), ["job 1", "job 2", "job 3"]);
  // Any job can end, not only the oldest.
  const ended = await card.end(2);
  assert.deepEqual(ended.sent, { hold: 2, used: 1 });
  assert.equal(await card.field("settled").textContent(), "The job has ended, and its place is free.");
  await assertLeft(visit, card, { maxConcurrent: 3, holdSeconds: 900 }, 1);
  await eventually(async () => assert.equal(await card.holds.count(), 2));
  assert.equal((await card.start()).json.allowed, true);
});

onBoth("the place of a job that does not end is free at its expiry", async (visit) => {
  const card = new Card(visit, JOBS);
  await card.set({ maxConcurrent: 1, holdSeconds: 2 });
  await card.start();
  const texts = await textsUntil(card.field("remaining"), /^1 of 1 left/);
  assert.deepEqual(texts, ["0 of 1 left", "1 of 1 left"]);
  assert.equal(await card.holds.count(), 0);
  assert.equal((await card.start()).json.allowed, true);
}, { reducedMotion: "no-preference" });

onBoth("holds survive a reload, and a reset forgets them", async (visit) => {
  const [bucket, jobs] = [BUCKET, JOBS].map((kind) => new Card(visit, kind));
  await bucket.set(BUCKET.slow);
  await bucket.reserve(3, 600);
  await jobs.start();
  await visit.reload();
  for (const card of [bucket, jobs]) await eventually(async () => assert.equal(await card.holds.count(), 1, card.id));
  await visit.answerTo("/api/rate-limit/reset", () => visit.page.getByRole("button", { name: "Reset All Counters" }).click());
  for (const card of [bucket, jobs]) await eventually(async () => assert.equal(await card.holds.count(), 0, card.id));
  await eventually(async () => assert.deepEqual([await bucket.left(), await jobs.left()], [10, 5]));
});

on("holds are reserved and settled with the keyboard, and the focus goes to the next hold", async (visit) => {
  const card = new Card(visit, JOBS);
  const { keyboard } = visit.page;
  await card.set(JOBS.slow);
  await card.startButton.focus();
  for (const job of [1, 2]) {
    await visit.answerTo(`${card.path}/reserve`, () => keyboard.press("Enter"));
    await eventually(async () => assert.equal(await card.holds.count(), job));
  }
  const focused = () => visit.page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent);
  for (let at = 0; at < 4; at += 1) await keyboard.press("Tab");
  assert.equal(await focused(), "End job 1");
  await visit.answerTo(`${card.path}/settle`, () => keyboard.press("Space"));
  await eventually(async () => assert.equal(await focused(), "End job 2"));
  await visit.answerTo(`${card.path}/settle`, () => keyboard.press("Enter"));
  await eventually(async () => assert.equal(await focused(), "Start"));

  const bucket = new Card(visit, BUCKET);
  await bucket.set(BUCKET.slow);
  await bucket.input("refillRate").focus();
  await keyboard.press("Tab");
  await keyboard.type("2");
  await keyboard.press("Tab");
  await keyboard.type("600");
  await keyboard.press("Tab");
  const { sent, json } = await visit.answerTo(`${bucket.path}/reserve`, () => keyboard.press("Enter"));
  assert.deepEqual([sent.units, sent.seconds], [2, 600]);
  await eventually(async () => assert.equal(await bucket.holds.count(), 1));
  await keyboard.press("Tab");
  await keyboard.type("1");
  await keyboard.press("Tab");
  const settled = await visit.answerTo(`${bucket.path}/settle`, () => keyboard.press("Enter"));
  assert.deepEqual(settled.sent, { hold: json.hold, used: 1 });
});

on("invalid units are reported and not sent", async (visit) => {
  const card = new Card(visit, BUCKET);
  const requests = [];
  visit.page.on("request", (request) => /reserve|settle/.test(request.url()) && requests.push(request.postDataJSON()));
  for (const [name, values] of [["units", ["", "0", "1.5", "1001"]], ["seconds", ["", "0", "3601"]]]) {
    const good = await card.input(name).inputValue();
    for (const value of values) {
      await card.input(name).fill(value);
      await card.reserveButton.click();
      await eventually(async () => assert.match(await card.problem.textContent(), /: enter a number, [\d.]+ to \d+/, `${name} ${value}`));
      assert.equal(await card.input(name).getAttribute("aria-invalid"), "true", `${name} ${value}`);
    }
    await card.input(name).fill(good);
  }
  const { json: { hold } } = await card.reserve(3, 600);
  for (const value of ["", "-1", "1001", "0.5"]) {
    await card.input(`used-${hold}`).fill(value);
    await card.element.getByRole("button", { name: `Settle hold ${hold}` }).click();
    await eventually(async () => assert.match(await card.problem.textContent(), /used: enter a whole number, 0 to 1000/, value));
  }
  assert.equal(requests.length, 1, "only the valid reservation was sent");
});

on("a shaping bucket has no fields to reserve", async (visit) => {
  const card = new Card(visit, CARDS[4]);
  assert.equal(await card.reserveButton.isVisible(), true);
  await card.set({ mode: "shaping" });
  await card.element.getByText("Units of a shaping bucket cannot be held").waitFor();
  assert.equal(await card.reserveButton.count(), 0);
  await card.set({ mode: "policing" });
  assert.equal(await card.reserveButton.isVisible(), true);
});

on("a store without holds has neither the fields to reserve nor the concurrency limit", async (visit) => {
  await visit.page.route("**/page/server.json", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), holds: false } });
  });
  await visit.reload();
  for (const kind of CARDS) await new Card(visit, kind).sendButton.waitFor();
  assert.equal(await visit.page.getByRole("button", { name: "Reserve" }).count(), 0);
  assert.equal(await visit.page.getByRole("article", { name: JOBS.title }).count(), 0);
  assert.equal((await new Card(visit, BUCKET).send()).json.remaining, 9);
});

for (const colorScheme of ["light", "dark"]) {
  for (const [size, options] of Object.entries({ desktop: {}, phone: PHONE })) {
    on(`axe finds no problem with holds: ${colorScheme} colours, ${size}`, async (visit) => {
      for (const kind of CARDS) await new Card(visit, kind).reserve(3, 600);
      const jobs = new Card(visit, JOBS);
      await jobs.element.getByRole("button", { name: "Start 10" }).click();
      await eventually(async () => assert.equal(await jobs.holds.count(), 5));
      // The numbers of the session's holds: five were reserved on the other cards.
      await jobs.end(CARDS.length + 1);
      assert.deepEqual(await axe(visit), []);
      if (options.isMobile) assert.equal(await visit.page.evaluate(() => document.documentElement.scrollWidth), 375);
    }, { colorScheme, ...options });
  }
}
