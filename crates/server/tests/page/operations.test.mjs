// The Operations view: access to it, rules, rates, refused keys and the store.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { before } from "node:test";

import { Redis, Server, axe, eventually, scratch } from "./harness.mjs";
import { visits } from "./visits.mjs";

const RULES = `
limits:
  once: { algorithm: sliding-window-log, limit: 1, window: 1h }
  many: { algorithm: token-bucket, capacity: 1000, refill: 10/s }
  few: { algorithm: sliding-window-log, limit: 60, window: 1h }
  more: { algorithm: sliding-window-log, limit: 600, window: 1h }
rules:
  - { name: tiered, domain: shop, key: [user], limit: { by: tier, tiers: { plus: more, banned: block }, default: few } }
  - { name: banned, domain: web, when: { ip: 203.0.113.66 }, key: [ip], limit: block }
  - { name: per-client, domain: api, key: [ip], limit: many }
  - { name: watched, domain: api, key: [ip], limit: once, shadow: true }
`;
/** A rule that is leased for so long that no lease ends during a test. */
const LEASED_RULES = `
limits:
  many: { algorithm: token-bucket, capacity: 100000, refill: 10/d }
rules:
  - { name: per-client, domain: api, key: [ip], limit: many, mode: leased, lease: { for: 1h } }
`;
const TOKEN = "0123456789abcdef0123456789abcdef";
/** Markup, a character that reverses text, a newline that an input field would drop, and a backslash. */
const KEY = "<script>alert(1)</script>\u202e\n\\";
const SHOWN_KEY = "<script>alert(1)</script>\\u{202e}\\u{a}\\\\";

const config = scratch("rules.yaml");
const leasedConfig = scratch("leased.yaml");
let local, guarded, closed, redis, onRedis, leased;
before(async () => {
  writeFileSync(config, RULES);
  writeFileSync(leasedConfig, LEASED_RULES);
  redis = await Redis.start();
  [local, guarded, closed, onRedis, leased] = await Promise.all([
    Server.start(["--config", config]),
    Server.start(["--config", config], { TOLLGATE_OPERATOR_TOKEN: TOKEN }),
    Server.start(["--config", config, "--no-playground"]),
    Server.start(["--config", config, "--store", redis.url, "--store-deadline", "1s"]),
    Server.start(["--config", leasedConfig, "--store", redis.url, "--store-deadline", "30s"]),
  ]);
});

const path = "/#operations";
const on = (name, server, body) => visits(name, server, { path }, body);

const table = ({ page }, name) => page.getByRole("table", { name });
const facts = ({ page }) => page.locator("#operations dl");
const check = (server) => server.ask("POST", "/v1/check", { domain: "api", attributes: { ip: "203.0.113.9" } });

/** Returns the texts of the cells in the row of a rule or a limit. */
async function row(visit, name) {
  const rows = table(visit, /^Rules and limits/).getByRole("row");
  const cells = rows.filter({ has: visit.page.getByRole("cell", { name, exact: true }) }).getByRole("cell");
  // The cell of a rate also has a total, which is omitted here.
  return cells.evaluateAll((cells) => cells.map((cell) => (cell.querySelector(".number")?.firstChild ?? cell).textContent));
}

on("rules and limits are listed with their parameters", () => local, async (visit) => {
  await table(visit, /^Rules and limits/).waitFor();
  await eventually(async () => {
    for (const [name, limit] of [["api/per-client", "token-bucket capacity=1000 refill=10/s"], ["api/watched", "sliding-window-log limit=1 window=1h"], ["once", "sliding-window-log limit=1 window=1h"]]) {
      assert.equal((await row(visit, name))[1], limit);
    }
  });
  const { json } = await local.ask("GET", "/v1/operations");
  const words = await facts(visit).textContent();
  for (const fact of [`generation ${json.readiness.generation}`, json.readiness.hash, "memory", "ready"]) assert.ok(words.includes(fact), `${fact} is not in ${words}`);
});

on("a rule is listed with all limits that it can charge", () => local, async (visit) => {
  await eventually(async () => {
    const [, limits] = await row(visit, "shop/tiered");
    assert.equal(limits, "few: sliding-window-log limit=60 window=1hblockmore: sliding-window-log limit=600 window=1h");
    assert.equal((await row(visit, "web/banned"))[1], "block");
  });
});

on("a key of a tiered rule is shown under each limit, and which one refused it", () => local, async (visit) => {
  const ask = (cost) => local.ask("POST", "/v1/check", { domain: "shop", cost, attributes: { user: "u1" } });
  await ask(60);
  await ask(1);
  const refusedRow = table(visit, "Most refused keys").getByRole("row").filter({ hasText: "user=u1" });
  await refusedRow.waitFor();
  assert.equal((await refusedRow.getByRole("cell").allTextContents())[0], "shop/tiered (few)");
  await refusedRow.getByRole("button", { name: /Look up/ }).click();
  await visit.page.locator("[data-field=lookup]").filter({ hasText: /last refused the key under few/ }).waitFor();
  const states = await visit.page.locator("[data-field=states] li p").allTextContents();
  assert.match(states[0], /^few \(without a tier\), last refused: 0 of 60 remain; refused for/);
  assert.equal(states[1], "block (tier banned): blocked: this rule refuses every request of the key");
  assert.match(states[2], /^more \(tier plus\): 540 of 600 remain/);
  assert.equal(await visit.page.getByRole("meter").count(), 2);
});

on("a blocked client is listed as refused", () => local, async (visit) => {
  for (let at = 0; at < 3; at += 1) await local.ask("POST", "/v1/check", { domain: "web", attributes: { ip: "203.0.113.66" } });
  const refusedRow = table(visit, "Most refused keys").getByRole("row").filter({ hasText: "ip=203.0.113.66" });
  await refusedRow.waitFor();
  assert.equal((await refusedRow.getByRole("cell").allTextContents())[0], "web/banned (block)");
  await refusedRow.getByRole("button", { name: /Look up/ }).click();
  await visit.page.locator("[data-field=lookup]").filter({ hasText: /^blocked: this rule refuses every request/ }).waitFor();
});

on("rates follow the decisions", () => local, async (visit) => {
  await eventually(async () => assert.equal((await row(visit, "api/per-client"))[2], "0.0"));
  const decided = async () => {
    for (let at = 0; at < 5; at += 1) await check(local);
    const [, , allowed, refused, shadow] = (await row(visit, "api/per-client")).map(Number);
    assert.ok(allowed > 0 && refused === 0 && shadow === 0, `${allowed} ${refused} ${shadow}`);
    assert.ok(Number((await row(visit, "api/watched"))[4]) > 0, "the shadow rule would have refused");
  };
  await eventually(decided);
  const rates = visit.page.getByRole("region", { name: "Decisions per second" });
  await eventually(async () => {
    await check(local);
    assert.match(await rates.getByRole("img").getAttribute("aria-label"), /now allowed [1-9]/);
  });
  await eventually(async () => assert.match(await rates.getByRole("img").getAttribute("aria-label"), /now allowed 0\.0/, "the rate returns to 0"));
  const { json } = await local.ask("GET", "/v1/operations");
  await table(visit, /^Rules and limits/).getByText(`${json.rules.find(({ name }) => name === "api/per-client").allowed} in total`).waitFor();
});

on("the most refused key is shown as text, looked up and reset", () => local, async (visit) => {
  const ask = () => local.ask("POST", "/v1/check", { limit: "once", key: KEY });
  for (let at = 0; at < 3; at += 1) await ask();
  const refused = table(visit, "Most refused keys");
  const refusedRow = refused.getByRole("row").filter({ has: visit.page.getByText(SHOWN_KEY, { exact: true }) });
  await refusedRow.waitFor();
  assert.deepEqual((await refusedRow.getByRole("cell").allTextContents()).slice(0, 3), ["once", SHOWN_KEY, "2"]);
  assert.equal(await visit.page.locator("main script").count(), 0);

  await refusedRow.getByRole("button", { name: /Look up/ }).click();
  const answer = visit.page.locator("[data-field=lookup]");
  await answer.filter({ hasText: /^0 of 1 remain; refused for 60 min/ }).waitFor();
  await visit.page.getByRole("button", { name: "Reset this key" }).click();
  assert.equal((await ask()).json.allowed, false, "the first click does not reset");
  await visit.page.getByRole("button", { name: "Confirm the reset" }).click();
  await answer.filter({ hasText: /was reset/ }).waitFor();
  assert.equal((await ask()).json.allowed, true);
});

on("API keys are shown in part and looked up in full", () => local, async (visit) => {
  const keys = ["api_key=abcdSECRET1", "api_key=abcdSECRET2"];
  for (const key of keys) for (let at = 0; at < 4; at += 1) await local.ask("POST", "/v1/check", { limit: "once", key });
  const buttons = visit.page.getByRole("button", { name: "Look up api_key=abcd…" });
  await eventually(async () => assert.equal(await buttons.count(), 2));
  const lookedUp = [];
  visit.page.on("request", (request) => request.url().includes("/keys/") && lookedUp.push(decodeURIComponent(request.url().split("/keys/")[1])));
  for (let at = 0; at < 2; at += 1) await buttons.nth(at).click();
  await eventually(() => assert.deepEqual([...lookedUp].sort(), keys));
  assert.ok(!(await visit.page.content()).includes("SECRET"));
  assert.ok(!(await visit.page.getByRole("textbox", { name: "key", exact: true }).inputValue()).includes("SECRET"));
  await visit.page.getByRole("button", { name: "Look up", exact: true }).click();
  await eventually(() => assert.equal(lookedUp.at(-1), lookedUp.at(-2), "the same key is looked up again"));
});

on("every key can be looked up, and an unknown limit is reported", () => local, async (visit) => {
  const [by, key] = ["rule or limit", "key"].map((name) => visit.page.getByRole("textbox", { name, exact: true }));
  const answer = visit.page.locator("[data-field=lookup]");
  const requests = [];
  visit.page.on("request", (request) => request.url().includes("/keys/") && requests.push(request.url()));
  const reset = visit.page.getByRole("button", { name: "Reset this key" });
  await reset.click();
  await by.fill("once");
  await key.fill("somebody / else?");
  await key.press("Enter");
  await answer.filter({ hasText: /^1 of 1 remain/ }).waitFor();
  await local.ask("POST", "/v1/check", { limit: "once", key: "somebody / else?" });
  await visit.page.getByRole("button", { name: "Look up", exact: true }).click();
  await answer.filter({ hasText: /^0 of 1 remain/ }).waitFor();
  await key.fill("\\u{1f6aa}");
  await key.press("Enter");
  await answer.filter({ hasText: /^1 of 1 remain/ }).waitFor();
  assert.ok(requests.at(-1).endsWith(encodeURIComponent("\\u{1f6aa}")), `the typed text is sent unchanged: ${requests.at(-1)}`);
  await by.fill("nothing");
  await key.press("Enter");
  await answer.filter({ hasText: /nothing/ }).waitFor();
  assert.equal(requests.length, 4, "an empty field sends nothing");
  visit.expect(/console: .*404.*\/v1\/limits\/nothing\/keys/);
});

on("a server with an operator token shows nothing without the token", () => guarded, async (visit) => {
  const field = visit.page.getByLabel("operator token");
  await field.waitFor();
  assert.equal(await table(visit, /^Rules and limits/).count(), 0);
  assert.equal(await visit.page.locator("#operations").getByRole("alert").count(), 0, "no token has been refused yet");
  await field.fill("wrong");
  await field.press("Enter");
  await visit.page.getByText("wrong token").waitFor();
  assert.equal(await table(visit, /^Rules and limits/).count(), 0);
  await field.fill(TOKEN);
  await visit.page.getByRole("button", { name: "Show" }).click();
  await table(visit, /^Rules and limits/).waitFor();
  await eventually(async () => assert.equal(await field.count() && (await field.isVisible()), false));
  assert.equal(await visit.page.getByText("wrong token").isVisible(), false);
  const kept = await visit.page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href, document.getElementById("token").value]));
  assert.ok(!kept.includes(TOKEN), "the page does not store the token");
  await visit.page.getByRole("textbox", { name: "rule or limit" }).fill("once");
  await visit.page.getByRole("textbox", { name: "key", exact: true }).fill("a");
  await visit.page.getByRole("button", { name: "Look up", exact: true }).click();
  await visit.page.locator("[data-field=lookup]").filter({ hasText: /^1 of 1 remain/ }).waitFor();
  visit.expect(/console: .*401.*\/v1\/operations/);
});

on("a server without the playground has only the Operations view", () => closed, async (visit) => {
  await table(visit, /^Rules and limits/).waitFor();
  await eventually(async () => assert.deepEqual(await visit.page.getByRole("tab").allTextContents(), ["Operations"]));
  assert.equal(await visit.page.getByRole("button", { name: "Send Request" }).count(), 0);
});

visits("a visitor without access to any view sees a notice", () => closed, {}, async (visit) => {
  await visit.page.route("**/page/server.json", (route) => route.fulfill({ json: { playground: false, operations: "no", store: "memory" } }));
  await visit.reload();
  await visit.page.getByText("The playground is switched off on this server").waitFor();
  assert.equal(await visit.page.getByRole("tab").count(), 0);
  assert.equal(await visit.page.getByRole("tabpanel").count(), 0);
});

visits("a server without the playground opens the Operations view", () => closed, {}, async (visit) => {
  await table(visit, /^Rules and limits/).waitFor();
  assert.equal(await visit.tab("Operations").getAttribute("aria-selected"), "true");
});

on("leased rules and their leases are shown", () => leased, async (visit) => {
  const leases = facts(visit).locator("div").filter({ hasText: /^leases/ });
  await leases.filter({ hasText: "0 open" }).waitFor();
  await eventually(async () => {
    const { json } = await check(leased);
    assert.equal(json.leased, true);
  });
  await leases.filter({ hasText: /1 open[1-9][0-9]* decisions here, .* calls of the store saved; units: [1-9][0-9]* used, 0 returned, 0 expired/ }).waitFor();
  await eventually(async () => {
    assert.equal((await row(visit, "api/per-client"))[1], "token-bucket capacity=100000 refill=10/dleased");
    assert.equal((await row(visit, "many"))[1], "token-bucket capacity=100000 refill=10/d", "checks by name are strict");
  });
  assert.deepEqual(await axe(visit), []);
});

on("a server without leased rules shows no leases", () => onRedis, async (visit) => {
  await table(visit, /^Rules and limits/).waitFor();
  await facts(visit).locator("div").filter({ hasText: "breaker closed" }).waitFor();
  assert.equal(await facts(visit).locator("div").filter({ hasText: /^leases/ }).count(), 0);
});

on("an outage of the store and its end are shown", () => onRedis, async (visit) => {
  const store = facts(visit).locator("div").filter({ hasText: "redis.sock" });
  await store.filter({ hasText: "breaker closed" }).waitFor();
  await redis.stop();
  await eventually(async () => {
    await check(onRedis);
    assert.match(await store.textContent(), /breaker (half )?open/);
  });
  await eventually(async () => assert.ok(Number((await row(visit, "api/per-client"))[5]) > 0, "some requests were decided without the store"));
  await visit.page.getByRole("textbox", { name: "rule or limit" }).fill("once");
  await visit.page.getByRole("textbox", { name: "key", exact: true }).fill("a");
  visit.expect(/console: .*503.*\/v1\/limits\/once\/keys\/a/);
  await visit.page.getByRole("button", { name: "Look up", exact: true }).click();
  await visit.page.locator("[data-field=lookup]").filter({ hasText: /the store failed/ }).waitFor();
  const unavailable = /console: .*503.*\/api\/rate-limit\/state/;
  visit.expect(unavailable);
  await eventually(() => assert.ok(visit.problems.some((problem) => unavailable.test(problem)), "the playground cannot read its counters"));
  const banner = visit.page.locator("#banner");
  await banner.filter({ hasText: /store/ }).waitFor();
  await redis.run();
  await store.filter({ hasText: "breaker closed" }).waitFor();
  await eventually(async () => assert.equal(await banner.textContent(), ""));
});
