// The page and its server: sessions, an unreachable server, caching, and counters on Redis.

import assert from "node:assert/strict";
import { before } from "node:test";

import { CARDS, Card } from "./cards.mjs";
import { Redis, Server, Visit, eventually } from "./harness.mjs";
import { visits } from "./visits.mjs";

let server, stopped, redis, onRedis;
before(async () => {
  [server, stopped, redis] = await Promise.all([Server.start(), Server.start(), Redis.start()]);
  onRedis = await Server.start(["--store", redis.url, "--store-deadline", "1s"]);
});

const BUCKET = CARDS.find(({ id }) => id === "token-bucket");
const REFUSED = [/failed: net::ERR_CONNECTION_REFUSED/, /console: .*ERR_CONNECTION_REFUSED/];

visits("two sessions have separate counters", () => server, {}, async (visit) => {
  const other = await Visit.open(server);
  try {
    const [first, second] = [visit, other].map((each) => new Card(each, BUCKET));
    await first.set(BUCKET.slow);
    await second.set(BUCKET.slow);
    assert.equal((await first.burst()).json.at(-1).remaining, 0);
    assert.equal((await second.send()).json.remaining, 9);
    assert.equal((await first.send()).json.allowed, false);
    await other.reload();
    assert.equal((await other.state()).algorithms["token-bucket"].remaining, 9, "a session survives a reload");
    await eventually(async () => assert.equal(await second.left(), 9));
    other.assertNoProblems();
  } finally {
    await other.close();
  }
});

visits("the page shows that the server does not answer, and continues when it is back", () => stopped, {}, async (visit) => {
  const card = new Card(visit, BUCKET);
  const banner = visit.page.locator("#banner");
  await card.set(BUCKET.slow);
  await card.send();
  await eventually(async () => assert.equal(await banner.isVisible(), false));
  visit.expect(...REFUSED);
  await stopped.stop();
  const at = performance.now();
  await banner.filter({ hasText: "does not answer" }).waitFor();
  assert.ok(performance.now() - at < 5000, "the outage is shown without a click");
  await card.sendButton.click();
  await card.problem.filter({ hasText: "does not answer" }).waitFor();

  await stopped.run();
  await eventually(async () => assert.equal(await banner.isVisible(), false));
  await eventually(async () => assert.equal(await visit.page.getByText("does not answer").count(), 0, "no card shows the failure any more"));
  // Counters in memory are lost with the server.
  assert.equal((await card.send()).json.remaining, 9);
  await eventually(async () => assert.equal(await card.field("verdict").textContent(), "Allowed"));
});

visits("a gateway's error page counts as no answer of the server", () => server, {}, async (visit) => {
  const banner = visit.page.locator("#banner");
  visit.expect(/console: .*502/);
  await visit.page.route("**/api/**", (route) => route.fulfill({ status: 502, contentType: "text/html", body: "<h1>Bad Gateway</h1>" }));
  await banner.filter({ hasText: "does not answer" }).waitFor();
  await visit.page.unroute("**/api/**");
  await eventually(async () => assert.equal(await banner.isVisible(), false));
});

visits("the page shows no tab until it knows which views the server has", () => server, {}, async (visit) => {
  let answer;
  await visit.page.route("**/page/server.json", (route) => { answer = () => route.continue(); });
  visit.isLeaving = true;
  await visit.page.reload();
  visit.isLeaving = false;
  await eventually(() => assert.ok(answer));
  assert.deepEqual([await visit.page.getByRole("tab").count(), await visit.page.getByRole("button").count()], [0, 0]);
  await answer();
  await visit.connected();
  assert.deepEqual(await visit.page.getByRole("tab").allTextContents(), ["Playground", "Compare", "Operations"]);
});

visits("the comparison is sent again when the server is back", () => stopped, { path: "/#compare" }, async (visit) => {
  const problem = visit.page.locator("#compare").getByRole("alert");
  visit.expect(...REFUSED);
  await visit.page.getByRole("img", { name: /Fixed window: 20 of 20/ }).waitFor();
  await stopped.stop();
  await visit.page.getByRole("combobox", { name: "traffic" }).selectOption("steady");
  await problem.filter({ hasText: "does not answer" }).waitFor();
  const { sent } = await visit.answerTo("/api/rate-limit/compare", () => stopped.run());
  assert.equal(sent.at_ms.length, 60);
  await visit.page.getByRole("img", { name: /Fixed window: 30 of 60/ }).waitFor();
  assert.equal(await problem.count(), 0);
});

visits("cached files are not sent again", () => server, {}, async (visit) => {
  const cdp = await visit.context.newCDPSession(visit.page);
  await cdp.send("Network.enable");
  const [paths, statuses] = [new Map(), new Map()];
  cdp.on("Network.requestWillBeSent", ({ requestId, request }) => paths.set(requestId, new URL(request.url).pathname));
  cdp.on("Network.responseReceivedExtraInfo", ({ requestId, statusCode }) => statuses.set(requestId, statusCode));
  await visit.reload();
  const files = () => Object.fromEntries([...paths].filter(([, path]) => /^\/$|\.(js|css|svg)$/.test(path)).map(([id, path]) => [path, statuses.get(id)]));
  await eventually(() => {
    assert.ok(Object.keys(files()).length >= 8, JSON.stringify(files()));
    assert.deepEqual(new Set(Object.values(files())), new Set([304]), JSON.stringify(files()));
  });
});

visits("the address selects the view", () => server, { path: "/#operations" }, async (visit) => {
  const go = (hash) => visit.page.evaluate((hash) => { location.hash = hash; }, hash);
  for (const [hash, name] of [["#operations", "Operations"], ["#compare", "Compare"], ["#elsewhere", "Compare"], ["#playground", "Playground"]]) {
    await go(hash);
    await eventually(async () => assert.deepEqual(await visit.page.getByRole("tab", { selected: true }).allTextContents(), [name], hash));
    assert.deepEqual(await visit.page.getByRole("tabpanel").evaluateAll((panels) => panels.map((panel) => panel.id)), [name.toLowerCase()]);
  }
  await visit.tab("Compare").click();
  assert.equal(new URL(visit.page.url()).hash, "#compare", "a click changes the address");
});

visits("the page works with counters on Redis", () => onRedis, {}, async (visit) => {
  await visit.page.getByText("counters on Redis").waitFor();
  for (const kind of CARDS) {
    const card = new Card(visit, kind);
    await card.set({ [kind.size]: 3, ...kind.slow });
    const { sent, json } = await card.burst();
    assert.deepEqual([json.filter(({ allowed }) => allowed).length, json.at(-1).remaining], [3, 0], kind.id);
    const state = (await visit.state({ [kind.id]: sent.config })).algorithms[kind.id];
    assert.deepEqual([state.remaining, state.limit], [0, 3], kind.id);
    await eventually(async () => assert.equal(await card.field("remaining").textContent(), "0 of 3 left", kind.id));
  }
  await visit.page.getByRole("button", { name: "Reset All Counters" }).click();
  for (const kind of CARDS) await eventually(async () => assert.equal(await new Card(visit, kind).left(), 3, kind.id));
  await visit.tab("Operations").click();
  await visit.page.locator("#operations dl").filter({ hasText: "breaker closed" }).waitFor();
});
