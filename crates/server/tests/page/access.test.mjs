// Accessibility: keyboard, screen reader, phone, dark and light colours, reduced motion.

import assert from "node:assert/strict";
import { before } from "node:test";

import { CARDS, Card } from "./cards.mjs";
import { Server, axe, eventually } from "./harness.mjs";
import { visits } from "./visits.mjs";

let server;
before(async () => { server = await Server.start(); });
const on = (name, body, options = {}) => visits(name, () => server, options, body);

const BUCKET = CARDS.find(({ id }) => id === "token-bucket");
const TABS = ["Playground", "Compare", "Operations"];
const PHONE = { viewport: { width: 375, height: 700 }, isMobile: true, hasTouch: true };

/** Returns the id or the text of the focused element. */
const focused = ({ page }) => page.evaluate(() => document.activeElement.id || document.activeElement.textContent.trim());

async function assertAccessible(visit, what) {
  assert.deepEqual(await axe(visit), [], what);
}

on("Tab moves through the page in reading order", async (visit) => {
  await visit.tab("Operations").waitFor();
  const order = [];
  for (let at = 0; at < 9; at += 1) {
    await visit.page.keyboard.press("Tab");
    order.push(await focused(visit));
  }
  assert.deepEqual(order, ["Skip to the content", "tab-playground", "send-all", "burst-all", "reset", "Send Request", "Burst 10", "fixed-window-maxRequests", "fixed-window-windowSeconds"]);
});

on("the link to the content keeps the selected tab", async (visit) => {
  const skip = visit.page.getByRole("link", { name: "Skip to the content" });
  await skip.focus();
  await eventually(async () => assert.ok((await skip.boundingBox()).x >= 0, "the link is visible"));
  await visit.page.keyboard.press("Enter");
  await eventually(async () => assert.equal(await focused(visit), "content"));
  assert.equal(await visit.tab("Compare").getAttribute("aria-selected"), "true");
  await visit.page.keyboard.press("Tab");
  assert.equal(await focused(visit), "pattern");
}, { path: "/#compare" });

on("arrow keys, Home and End select tabs", async (visit) => {
  await visit.tab("Operations").waitFor();
  await visit.tab("Playground").focus();
  for (const [key, name] of [["ArrowRight", "Compare"], ["ArrowRight", "Operations"], ["ArrowRight", "Playground"], ["ArrowLeft", "Operations"], ["ArrowLeft", "Compare"], ["End", "Operations"], ["Home", "Playground"]]) {
    await visit.page.keyboard.press(key);
    assert.equal(await focused(visit), `tab-${name.toLowerCase()}`, key);
    assert.deepEqual(await visit.page.getByRole("tab", { selected: true }).allTextContents(), [name]);
    await visit.page.getByRole("tabpanel", { name }).waitFor();
    assert.deepEqual(await visit.page.getByRole("tab").evaluateAll((tabs) => tabs.filter((tab) => tab.tabIndex === 0).map((tab) => tab.textContent)), [name], "the Tab key reaches only the selected tab");
  }
});

on("buttons work with Enter and Space and keep the focus", async (visit) => {
  const card = new Card(visit, BUCKET);
  await card.sendButton.focus();
  for (const key of ["Enter", "Space"]) {
    await visit.answerTo(card.path, () => visit.page.keyboard.press(key));
    await eventually(async () => assert.equal(await card.sendButton.isEnabled(), true));
    assert.equal(await focused(visit), "Send Request", key);
  }
  await card.burstButton.focus();
  await visit.answerTo(`${card.path}/burst`, () => visit.page.keyboard.press("Enter"));
  await visit.page.getByRole("button", { name: "Reset All Counters" }).focus();
  await visit.answerTo("/api/rate-limit/reset", () => visit.page.keyboard.press("Space"));
  await card.input("maxTokens").focus();
  await visit.answerTo("/api/rate-limit/state", () => visit.page.keyboard.press("ArrowUp").then(() => visit.page.keyboard.press("Tab")),
    ({ config }) => config["token-bucket"].maxTokens === 11);
});

for (const colorScheme of ["light", "dark"]) {
  for (const [size, options] of Object.entries({ desktop: {}, phone: PHONE })) {
    on(`axe finds no problem: ${colorScheme} colours, ${size}`, async (visit) => {
      await assertAccessible(visit, "before any request");
      const leaky = new Card(visit, CARDS[4]);
      await leaky.set({ mode: "shaping" });
      for (const name of ["Burst 10 to all", "Send to all"]) {
        await visit.page.getByRole("button", { name, exact: true }).click();
        await eventually(async () => assert.equal(await leaky.sendButton.isEnabled(), true));
      }
      await new Card(visit, BUCKET).input("maxTokens").fill("0");
      await new Card(visit, BUCKET).sendButton.click();
      await assertAccessible(visit, "after refusals and an invalid parameter");
      await visit.tab("Compare").click();
      await visit.page.getByRole("img", { name: /Fixed window: 20 of 20/ }).waitFor();
      await assertAccessible(visit, "compare");
      await visit.page.getByRole("switch").check();
      await visit.page.getByRole("spinbutton", { name: "settle (units)" }).fill("4");
      await visit.page.keyboard.press("Enter");
      await visit.page.getByRole("img", { name: /most units charged .* proven bound 20 \+ \d/ }).waitFor();
      await assertAccessible(visit, "compare with requests that reserve units");
      for (let at = 0; at < 70; at += 1) await server.ask("POST", "/v1/check", { limit: "free", key: "<b>" });
      await visit.tab("Operations").click();
      await visit.page.getByRole("button", { name: /Look up <b>/ }).first().click();
      await visit.page.locator("[data-field=lookup]").filter({ hasText: /of 60 remain/ }).waitFor();
      await assertAccessible(visit, "operations");
    }, { colorScheme, ...options });
  }
}

on("the page fits the narrowest phone", async (visit) => {
  await visit.page.getByRole("button", { name: "Burst 10 to all" }).click();
  for (const card of CARDS) await new Card(visit, card).field("verdict").waitFor();
  for (const name of TABS) {
    await visit.tab(name).click();
    if (name === "Compare") await visit.page.getByRole("switch").check();
    if (name === "Operations") await visit.page.getByRole("table", { name: /Rules/ }).waitFor();
    const overflow = () => visit.page.evaluate(() => ({
      page: document.documentElement.scrollWidth,
      out: [...document.querySelectorAll("main *, header *")].filter((element) => element.getBoundingClientRect().right > 321 && !element.closest(".scroll, svg")).map((element) => element.outerHTML.slice(0, 80)),
    }));
    await eventually(async () => assert.deepEqual(await overflow(), { page: 320, out: [] }, name));
  }
}, { ...PHONE, viewport: { width: 320, height: 600 } });

/** Returns the milliseconds between `count` redraws of a card's picture. */
function redraws(card, count) {
  return card.picture.evaluate((svg, count) => new Promise((resolve) => {
    const times = [];
    new MutationObserver((_, observer) => {
      if (times.push(performance.now()) <= count) return;
      observer.disconnect();
      resolve(times.slice(1).map((time, at) => time - times[at]));
    }).observe(svg, { childList: true });
  }), count);
}

on("pictures are redrawn often, and a refusal shakes its card", async (visit) => {
  const card = new Card(visit, BUCKET);
  await card.set({ maxTokens: 1, ...BUCKET.slow });
  const steps = await redraws(card, 12);
  assert.ok(Math.min(...steps) < 200, `${steps}`);
  await card.burst();
  await eventually(async () => assert.notEqual(await card.element.evaluate((element) => getComputedStyle(element).animationName), "none"));
}, { reducedMotion: "no-preference" });

on("reduced motion stops animations and slows redraws", async (visit) => {
  const card = new Card(visit, BUCKET);
  await card.set({ maxTokens: 1, ...BUCKET.slow });
  await card.burst();
  await card.element.and(visit.page.locator(".refused")).waitFor();
  const animations = await visit.page.evaluate(() => document.getAnimations().length);
  assert.equal(animations, 0);
  // The page redraws at most twice per second, and once for each update from the server, which comes every second.
  const steps = await redraws(card, 6);
  const seconds = steps.reduce((sum, step) => sum + step, 0) / 1000;
  assert.ok(seconds > 1.5, `6 redraws in ${seconds} s`);
}, { reducedMotion: "reduce" });
