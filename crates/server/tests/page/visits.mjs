// Tests that open the page.

import { after, test } from "node:test";

import { Visit, end } from "./harness.mjs";

const LONGEST_MS = 60_000;

after(end);

/** A test with a window on the page, which must have no problems. `server` is a function, because servers start later. */
export function visits(name, server, options, body) {
  test(name, { timeout: LONGEST_MS }, async () => {
    const visit = await Visit.open(server(), options);
    try {
      await body(visit);
      visit.assertCalm();
    } finally {
      await visit.close();
    }
  });
}
