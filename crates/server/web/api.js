// The server, as the page knows it: requests, its clock, and whether it is there.

const listeners = new Set();
let isThere = true;

/** Whether the server did not answer when it was last asked. */
export const isAway = () => !isThere;

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
  let response, text;
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
    text = await response.text();
  } catch (error) {
    present(false);
    throw new Error("the server does not answer", { cause: error });
  }
  let json = null;
  try {
    json = text === "" ? null : JSON.parse(text);
  } catch {
    // No answer of the server's own; /healthz alone is no JSON.
  }
  // Somebody between here and the server says that it does not.
  const isOther = response.status >= 500 && json?.title === undefined;
  present(!isOther);
  if (isOther) throw new Error(`the server does not answer: ${response.status}`);
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
