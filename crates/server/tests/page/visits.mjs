// Defines tests that open the page.

import { after, test } from "node:test";

import { Visit, end } from "./harness.mjs";

/** The longest time of a test. */
const TIMEOUT_MS = 60_000;

after(end);

/** Defines a test with a browser window on the page. The page must not have problems. `server` is a function, because servers start later. */
export function visits(name, server, options, body) {
  test(name, { timeout: TIMEOUT_MS }, async () => {
    const visit = await Visit.open(server(), options);
    try {
      await body(visit);
      visit.assertNoProblems();
    } finally {
      await visit.close();
    }
  });
}
