// The Compare view: each kind of traffic is sent, and the table and the picture show the API's answers.

import assert from "node:assert/strict";
import { before } from "node:test";

import { Server, axe, eventually } from "./harness.mjs";
import { visits } from "./visits.mjs";

let server;
before(async () => { server = await Server.start(); });

/** Defines a test that starts after the page has shown its first comparison, so that the test causes all later requests. */
const on = (name, body, options = {}) => visits(name, () => server, { path: "/#compare", ...options }, async (visit) => {
  await eventually(async () => assert.equal(Object.keys(await rows(visit)).length, TITLES.length));
  await body(visit);
});

const PATH = "/api/rate-limit/compare";
const TITLES = ["Fixed window", "Sliding window log", "Sliding window counter", "Token bucket", "Leaky bucket, policing", "Leaky bucket, shaping", "Concurrency limit"];

const parts = ({ page }) => ({
  table: page.getByRole("table", { name: "The same in numbers" }),
  picture: page.getByRole("img", { name: /Fixed window: \d+ of \d+ allowed/ }),
  pattern: page.getByRole("combobox", { name: "traffic" }),
  typed: page.getByRole("textbox", { name: "or type times" }),
  problem: page.locator("#compare").getByRole("alert"),
});

/** Returns the rows of the table by title: the allowed requests, the most in one window, the bound, and the limit. */
async function rows(visit) {
  const all = await parts(visit).table.locator("tbody tr").evaluateAll((rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent)));
  return Object.fromEntries(all.map(([title, allowed, worst, bound, limit]) => [title, { allowed, worst: parseInt(worst, 10), bound: parseInt(bound, 10), limit }]));
}

/** Asserts that the table and the picture show an answer. */
async function assertShown(visit, { sent, json }, { asBars = false } = {}) {
  const count = sent.at_ms.length;
  const wanted = json.map(({ allowed, worst, bound, limit }, at) => [TITLES[at], { allowed: `${allowed} of ${count}`, worst, bound, limit }]);
  await eventually(async () => assert.deepEqual(await rows(visit), Object.fromEntries(wanted)));
  const words = await parts(visit).picture.getAttribute("aria-label");
  for (const [title, { allowed, worst, bound }] of wanted) {
    const most = title === "Concurrency limit" ? "most at the same time" : `most in any ${sent.window_ms / 1000} s of this traffic`;
    assert.ok(words.includes(`${title}: ${allowed} allowed, ${most} ${worst}, proven bound ${bound}`), words);
  }
  assert.equal(await parts(visit).picture.locator("rect.job").count(), json.at(-1).allowed, "a bar for each job");
  // Many requests at the same time are drawn as bars instead of dots.
  if (asBars) return assert.ok(await parts(visit).picture.locator("rect.yes").count() > 0);
  // Shaped requests that leave after the end are not in the picture.
  const shown = json.slice(0, -1).flatMap(({ goes_ms: goes }) => goes).filter((ms) => ms !== null && ms <= 3 * sent.window_ms).length;
  assert.equal(await parts(visit).picture.locator("circle").count(), shown);
  assert.equal(await parts(visit).picture.locator("path.no").count(), json.flatMap(({ goes_ms: goes }) => goes).filter((ms) => ms === null).length);
}

/** Returns the answer to the request that the page sends because of `act`. */
const answer = (visit, act, isWanted) => visit.answerTo(PATH, act, isWanted);

on("a burst at a window boundary passes twice the limit of the fixed window, and not of the log", async (visit) => {
  await eventually(async () => assert.equal((await rows(visit))["Fixed window"].allowed, "20 of 20"));
  const shown = await rows(visit);
  assert.deepEqual(Object.keys(shown), TITLES);
  assert.deepEqual([shown["Fixed window"].worst, shown["Sliding window log"].worst], [20, 10]);
  const words = await parts(visit).picture.getAttribute("aria-label");
  assert.match(words, /Fixed window: 20 of 20 allowed, most in any 10 s of this traffic 20, proven bound 20; Sliding window log: 10 of 20 allowed, most in any 10 s of this traffic 10, proven bound 10;/);
  const texts = await parts(visit).picture.locator("text").allTextContents();
  assert.equal(texts.filter((text) => text === "20 in 10 s").length, 1, `${texts}`);
  assert.ok(texts.filter((text) => text === "10 in 10 s").length >= 1, `${texts}`);
  // The bound of a bucket is larger than the number of requests that pass in this traffic.
  assert.deepEqual(TITLES.map((title) => shown[title].bound), [20, 10, 20, 19, 19, 10, 10]);
  assert.deepEqual(texts.filter((text) => text.startsWith("bound: ")), [20, 10, 20, 19, 19, 10, 10].map((bound) => `bound: ${bound}`));
  assert.ok(texts.includes("most in this traffic") && !texts.includes("at worst"), `${texts}`);
  assert.match(await visit.page.locator("[data-field=summary]").textContent(), /Fixed window lets 20 requests pass in 10 s, 2\.0x the limit\./);
});

on("each kind of traffic is sent, and the page shows the API's answer", async (visit) => {
  const { pattern } = parts(visit);
  for (const [name, count] of [["steady", 60], ["bursts", 72], ["boundary", 20]]) {
    const result = await answer(visit, () => pattern.selectOption(name));
    assert.equal(result.sent.at_ms.length, count, name);
    await assertShown(visit, result);
  }
});

on("traffic can be chosen with the keyboard", async (visit) => {
  await parts(visit).pattern.focus();
  await assertShown(visit, await answer(visit, () => visit.page.keyboard.press("ArrowDown")));
  await visit.page.keyboard.press("Tab");
  await visit.page.keyboard.type("1*3 2");
  await assertShown(visit, await answer(visit, () => visit.page.keyboard.press("Enter"), ({ at_ms: times }) => times.length === 4));
});

on("typed traffic is parsed and sent", async (visit) => {
  const { typed, pattern, problem } = parts(visit);
  for (const [text, times] of [["2 0.2*3, 1.25", [200, 200, 200, 1250, 2000]], ["30", [30000]], ["0x2 0×1 1.5 * 2", [0, 0, 0, 1500, 1500]], ["", []]]) {
    await typed.fill(text);
    const result = await answer(visit, () => typed.press("Enter"));
    assert.deepEqual(result.sent.at_ms, times, text);
    assert.equal(await pattern.inputValue(), "drawn");
    assert.equal(await problem.count(), 0);
    await assertShown(visit, result);
  }
});

on("malformed traffic is reported and not sent", async (visit) => {
  const { typed, problem } = parts(visit);
  const requests = [];
  visit.page.on("request", (request) => request.url().endsWith(PATH) && requests.push(request.postDataJSON()));
  for (const [text, problems] of [["soon", /soon is not a time/], ["-1", /not a time/], ["1**2", /not a time/], ["1,5", /1,5 is not a time/], ["30.01", /too late; use 0 to 30/], ["1*2001", /more than 2000/], ["1*99999999999999", /more than 2000/], ["<b>1</b>", /<b>1<\/b> is not a time/]]) {
    await typed.fill(text);
    await typed.press("Enter");
    await eventually(async () => assert.match(await problem.textContent(), problems));
    assert.equal(await typed.getAttribute("aria-invalid"), "true");
  }
  await typed.fill("1*2000");
  await assertShown(visit, await answer(visit, () => typed.press("Enter")), { asBars: true });
  assert.equal(await typed.getAttribute("aria-invalid"), "false");
  assert.equal(requests.length, 1, "only the valid traffic was sent");
});

on("traffic is drawn with the mouse", async (visit) => {
  const { picture, typed, pattern } = parts(visit);
  // Retried, because the picture can be redrawn at this moment.
  const ground = await eventually(async () => (await picture.locator(".ground").boundingBox()) ?? assert.fail("no drawing area"));
  const at = (share, height) => [ground.x + share * ground.width, ground.y + (1 - height) * ground.height];
  const { mouse } = visit.page;
  // Drawing changes the traffic that is shown: ten requests on each side of the boundary.
  await mouse.move(...at(0.252, 0.5));
  const first = await answer(visit, () => mouse.down());
  await mouse.up();
  assert.equal(first.sent.at_ms.length, 26);
  const none = await answer(visit, () => visit.page.getByRole("button", { name: "Clear" }).click());
  assert.deepEqual(none.sent.at_ms, []);

  await typed.fill("3");
  await answer(visit, () => typed.press("Enter"));
  await answer(visit, () => visit.page.getByRole("button", { name: "Clear" }).click());
  await mouse.move(...at(0.252, 0.5));
  const result = await answer(visit, () => mouse.down());
  // A quarter of 30 s, and half of 12 requests.
  assert.deepEqual([result.sent.at_ms.length, result.sent.at_ms[0]], [6, 7500]);
  assert.deepEqual([await pattern.inputValue(), await typed.inputValue()], ["drawn", ""]);
  // A quick stroke leaves no gaps: 6, 6, 7, 7, 8, and so on to 12.
  const dragged = await answer(visit, () => mouse.move(...at(0.505, 1)), ({ at_ms: times }) => times.length === 144);
  assert.equal(dragged.sent.at_ms[132], 15_000);
  await mouse.up();
  await eventually(async () => assert.deepEqual(await picture.locator(".ground").boundingBox(), ground, "the drawing area does not move"));
  await assertShown(visit, dragged);
  await mouse.move(...at(0.75, 1));
  await mouse.move(...at(0.252, 0));
  // A click at the bottom removes requests. Moves without a pressed button draw nothing.
  const less = await answer(visit, () => mouse.down());
  await mouse.up();
  assert.deepEqual([less.sent.at_ms.length, less.sent.at_ms[0]], [138, 8_000]);
  await assertShown(visit, less);
});

on("traffic is drawn with a finger, and the page does not scroll", async (visit) => {
  const { picture } = parts(visit);
  await answer(visit, () => visit.page.getByRole("button", { name: "Clear" }).click());
  await picture.scrollIntoViewIfNeeded();
  const ground = await eventually(async () => (await picture.locator(".ground").boundingBox()) ?? assert.fail("no drawing area"));
  const cdp = await visit.context.newCDPSession(visit.page);
  const touch = (type, share) => cdp.send("Input.dispatchTouchEvent", {
    type, touchPoints: share === null ? [] : [{ x: ground.x + share * ground.width, y: ground.y + ground.height / 2 }],
  });
  const drawn = await answer(visit, async () => {
    await touch("touchStart", 0.1);
    for (let step = 2; step <= 9; step += 1) await touch("touchMove", step / 10);
    await touch("touchEnd", null);
  }, ({ at_ms: times }) => new Set(times.map((ms) => Math.floor(ms / 500))).size >= 48);
  await assertShown(visit, drawn);
}, { viewport: { width: 375, height: 800 }, isMobile: true, hasTouch: true });

on("traffic starts at the beginning of a window of any length", async (visit) => {
  const [limit, seconds] = ["limit (requests)", "window (s)"].map((name) => visit.page.locator("#compare").getByRole("spinbutton", { name }));
  for (const [count, every] of [[5, 7], [10, 59], [100, 60], [1, 1]]) {
    await limit.fill(String(count));
    await seconds.fill(String(every));
    const { json } = await answer(visit, () => seconds.press("Enter"), ({ window_ms: ms, at_ms: times }) => ms === every * 1000 && times.length === 2 * count);
    assert.deepEqual([json[0].worst, json[1].worst, json[5].worst], [2 * count, count, count], `${count} in ${every} s`);
  }
});

on("the limit of all algorithms can be changed", async (visit) => {
  const [limit, seconds] = ["limit (requests)", "window (s)"].map((name) => visit.page.locator("#compare").getByRole("spinbutton", { name }));
  await limit.fill("5");
  await answer(visit, () => limit.press("Enter"));
  await seconds.fill("2");
  const result = await answer(visit, () => seconds.press("Enter"));
  assert.deepEqual([result.sent.window_ms, result.sent.config["token-bucket"], result.sent.config["fixed-window"]],
    [2000, { maxTokens: 5, refillRate: 2.5 }, { maxRequests: 5, windowSeconds: 2 }]);
  await assertShown(visit, result);
  assert.deepEqual([result.json[0].worst, result.json[1].worst], [10, 5]);
  await parts(visit).table.getByRole("columnheader", { name: "most in any 2 s of this traffic" }).waitFor();
  await parts(visit).table.getByRole("columnheader", { name: "proven bound for any 2 s" }).waitFor();
  for (const wrong of ["", "0", "1.5", "101"]) {
    await limit.fill(wrong);
    await limit.press("Enter");
    await eventually(async () => assert.match(await parts(visit).problem.textContent(), /whole number, 1 to 100/, wrong));
    assert.equal(await limit.getAttribute("aria-invalid"), "true", wrong);
  }
});

on("requests that reserve units are drawn with a held part, beside the concurrency limit", async (visit) => {
  const { typed, picture, problem } = parts(visit);
  const view = visit.page.locator("#compare");
  const reserves = view.getByRole("switch", { name: "requests reserve units, and settle them when they end" });
  const field = (name) => view.getByRole("spinbutton", { name });
  assert.equal(await field("reserve (units)").count(), 0, "the fields are hidden");
  await typed.fill("0*4 3 5");
  await answer(visit, () => typed.press("Enter"));
  // With the keyboard.
  await reserves.focus();
  const first = await answer(visit, () => visit.page.keyboard.press("Space"), ({ reserve }) => reserve === 3);
  assert.deepEqual([first.sent.reserve, first.sent.settle, first.sent.takes_ms], [3, 2, 2000]);
  await field("a request takes (s)").fill("4");
  await answer(visit, () => field("a request takes (s)").press("Enter"), ({ takes_ms: ms }) => ms === 4000);
  await field("settle (units)").fill("4");
  const { json } = await answer(visit, () => field("settle (units)").press("Enter"), ({ settle }) => settle === 4);
  assert.deepEqual(json.map(({ algorithm }) => algorithm), ["fixed-window", "sliding-window-log", "sliding-window-counter", "token-bucket", "leaky-bucket", "concurrency"]);
  // Three requests hold nine of ten units until 4 s, and have then used twelve.
  assert.deepEqual(json.map(({ goes_ms: goes }) => goes.filter((ms) => ms !== null).length), [3, 3, 3, 3, 3, 6]);
  assert.deepEqual([json[0].worst, json[0].excess, json[0].holds_ms], [12, 3, 4000]);
  await eventually(async () => assert.equal((await rows(visit))["Sliding window log"].worst, 12));
  assert.deepEqual(Object.keys(await rows(visit)), TITLES.filter((title) => !title.includes("shaping")));
  const count = (selector) => picture.locator(selector).count();
  assert.deepEqual([await count("rect.job.held"), await count("rect.settled.over"), await count("path.no"), await count("circle")], [5 * 3 + 6, 5 * 3, 5 * 3, 0]);
  const wide = Number(await picture.locator(".ground").getAttribute("width"));
  const bars = await picture.locator("rect.job").evaluateAll((all) => all.map((bar) => Number(bar.getAttribute("width"))));
  for (const width of bars) assert.ok(Math.abs(width - (4 / 30) * wide) < 1, `${width} of ${wide}`);
  assert.match(await picture.getAttribute("aria-label"), /Fixed window: 3 of 6 allowed, most units charged in any 10 s of this traffic 12, proven bound 20 \+ 3;/);
  await visit.page.locator("[data-field=summary]").filter({ hasText: "Fixed window lets 12 units pass in 10 s, 2 above the limit." }).filter({ hasText: "a shaping bucket cannot be held" }).waitFor();
  await view.getByRole("listitem").filter({ hasText: "units that a request holds" }).waitFor();
  await parts(visit).table.getByRole("columnheader", { name: "proven bound for any 10 s, + units charged beyond the holds" }).waitFor();
  await field("limit (units)").waitFor();
  assert.deepEqual(await axe(visit), []);
  for (const wrong of ["", "0", "101"]) {
    await field("reserve (units)").fill(wrong);
    await field("reserve (units)").press("Enter");
    await eventually(async () => assert.match(await problem.textContent(), /whole number, 1 to 100/, wrong));
    assert.equal(await field("reserve (units)").getAttribute("aria-invalid"), "true", wrong);
  }
  // A wrong number in a hidden field does not count.
  const without = await answer(visit, () => reserves.click(), ({ reserve }) => reserve === undefined);
  assert.equal(without.json.length, 7);
  await assertShown(visit, without);
});

on("a job has a bar as long as it takes, and is refused while all places are taken", async (visit) => {
  const { typed, picture, problem } = parts(visit);
  const [limit, takes] = ["limit (requests)", "a job takes (s)"].map((name) => visit.page.locator("#compare").getByRole("spinbutton", { name }));
  await limit.fill("2");
  await answer(visit, () => limit.press("Enter"));
  await typed.fill("0 1 2 6 12");
  await answer(visit, () => typed.press("Enter"));
  await takes.fill("6");
  const result = await answer(visit, () => takes.press("Enter"), ({ takes_ms: ms }) => ms === 6000);
  assert.deepEqual(result.sent.config.concurrency, { maxConcurrent: 2, holdSeconds: 60 });
  assert.deepEqual(result.json.at(-1).goes_ms, [0, 1000, null, 6000, 12_000]);
  await assertShown(visit, result);
  // At 6 s the first job has ended, and at 12 s the second and the third.
  const bars = await picture.locator("rect.job").evaluateAll((all) => all.map((bar) => ["x", "y", "width"].map((name) => Number(bar.getAttribute(name)))));
  const wide = Number(await picture.locator(".ground").getAttribute("width"));
  for (const [, , width] of bars) assert.ok(Math.abs(width - (6 / 30) * wide) < 1, `${width} of ${wide}`);
  const [first, second, third, fourth] = bars.map(([, y]) => y);
  assert.ok(second < first && third === first && fourth === first, `${bars}: the lowest free place`);
  await visit.page.locator("[data-field=summary]").filter({ hasText: "Concurrency limit starts 4 of 5 jobs, and at most 2 run at once." }).waitFor();
  for (const wrong of ["", "0", "61"]) {
    await takes.fill(wrong);
    await takes.press("Enter");
    await eventually(async () => assert.match(await problem.textContent(), /whole number, 1 to 60/, wrong));
    assert.equal(await takes.getAttribute("aria-invalid"), "true", wrong);
  }
});
