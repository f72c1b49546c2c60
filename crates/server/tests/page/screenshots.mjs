// Takes screenshots of the page for the documents: `node screenshots.mjs docs/pictures`.

import { stat } from "node:fs/promises";
import { join } from "node:path";

import { CARDS, Card, JOBS } from "./cards.mjs";
import { Server, Visit, end } from "./harness.mjs";

const [, , directory] = process.argv;
if (!directory) throw new Error("no directory for the pictures; run: node screenshots.mjs docs/pictures");

const DESKTOP = { viewport: { width: 1280, height: 1000 } };
const PHONE = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true };

/** Sends requests, so that the cards show allowed requests, refused requests, a queue, held units and jobs. */
async function play(visit) {
  const [fixed, log, counter, tokens, leaky, jobs] = [...CARDS, JOBS].map((kind) => new Card(visit, kind));
  await leaky.set({ mode: "shaping" });
  await counter.set({ windowSeconds: 4 });
  await jobs.start();
  await tokens.reserve(3, 10);
  for (const card of [log, counter, tokens, leaky]) {
    for (let count = 0; count < 3; count += 1) await card.send();
    await card.burst();
  }
  // During this time the log's entries age, buckets refill, and the queue gets shorter.
  await visit.page.waitForTimeout(1500);
  for (const card of [counter, log, tokens]) await card.send();
  for (let count = 0; count < 2; count += 1) await jobs.start();
  await fixed.burst();
  await fixed.send();
  await visit.page.evaluate(() => {
    document.activeElement.blur();
    scrollTo(0, 0);
  });
  await visit.page.mouse.move(0, 0);
  // Waits until the animation of refused cards has ended.
  await visit.page.waitForTimeout(500);
}

async function shoot(server, name, options, prepare, { fullPage = false } = {}) {
  const visit = await Visit.open(server, options);
  await prepare(visit);
  const path = join(directory, name);
  await visit.page.screenshot({ path, fullPage, scale: options.deviceScaleFactor ? "device" : "css" });
  visit.assertNoProblems();
  await visit.close();
  console.log(`${path}: ${Math.ceil((await stat(path)).size / 1000)} kB`);
}

const server = await Server.start();
try {
  await shoot(server, "page-light.png", { ...DESKTOP, colorScheme: "light" }, play, { fullPage: true });
  await shoot(server, "page-dark.png", { ...DESKTOP, colorScheme: "dark" }, play, { fullPage: true });
  const showsComparison = (visit) => visit.page.getByRole("img", { name: /Fixed window: 20 of 20/ }).waitFor();
  await shoot(server, "compare.png", { ...DESKTOP, path: "/#compare", colorScheme: "light" }, showsComparison, { fullPage: true });
  const reserves = async (visit) => {
    await showsComparison(visit);
    await visit.page.getByRole("combobox", { name: "traffic" }).selectOption("bursts");
    await visit.page.getByRole("switch").check();
    await visit.page.getByRole("img", { name: /most units charged/ }).waitFor();
  };
  await shoot(server, "compare-holds.png", { ...DESKTOP, path: "/#compare", colorScheme: "light" }, reserves, { fullPage: true });
  await shoot(server, "phone.png", { ...PHONE, colorScheme: "light" }, play);
} finally {
  await end();
}
