// The server, as the page knows it: requests, its clock, and whether it is there.

const listeners = new Set();
let isThere = true;

/** Calls back whenever the server goes away or returns. */
export function onPresence(listener) {
  listeners.add(listener);
}

function present(now) {
  if (now === isThere) return;
  isThere = now;
  for (const listener of listeners) listener(now);
}

/** What the server answers with: its status, headers and JSON. Rejects if it is not there. */
export async function ask(method, path, body, token = null) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: {
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(5000),
    });
  } catch (error) {
    present(false);
    throw new Error("the server does not answer", { cause: error });
  }
  present(true);
  const text = await response.text();
  let json = null;
  try {
    json = text === "" ? null : JSON.parse(text);
  } catch {
    // Something between here and the server has answered.
  }
  return { status: response.status, ok: response.ok, headers: response.headers, json };
}

/** The reason of a refusal that is no decision. */
export function reasonOf(answer) {
  return answer.json?.detail ?? answer.json?.title ?? `the server answered ${answer.status}`;
}

let aheadUs = 0;

/** Sets the page's clock by what the server said. Times of requests differ; the least delay is the truest. */
let truest = Infinity;
export function heardTime(serverUs, sentMs, receivedMs) {
  const roundTrip = receivedMs - sentMs;
  // A little worse every time, so that a clock that drifts is followed.
  truest += 0.5;
  if (roundTrip > truest) return;
  truest = roundTrip;
  aheadUs = serverUs - ((sentMs + receivedMs) / 2) * 1000;
}

/** The server's time, as near as it is known, in microseconds. */
export function nowUs() {
  return performance.now() * 1000 + aheadUs;
}
