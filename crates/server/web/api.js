// Sends requests to the server, and tracks its clock and whether it can be reached.

const listeners = new Set();
let isReachable = true;

/** Whether the server did not answer the last request. */
export const isUnreachable = () => !isReachable;

/** Calls `listener` with whether the server can be reached, each time that this changes. */
export function onReachability(listener) {
  listeners.add(listener);
}

function setReachable(now) {
  if (now === isReachable) return;
  isReachable = now;
  for (const listener of listeners) listener(now);
}

/** Sends a request, and returns the status, headers and JSON of the answer. Rejects if the server cannot be reached. */
export async function send(method, path, body, token = null) {
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
    setReachable(false);
    throw new Error("the server does not answer", { cause: error });
  }
  let json = null;
  try {
    json = text === "" ? null : JSON.parse(text);
  } catch {
    // Only /healthz answers without JSON. Other text without JSON does not come from the server.
  }
  // A gateway in front of the server answers with such an error when it does not reach the server.
  const isGateway = response.status >= 500 && json?.title === undefined;
  setReachable(!isGateway);
  if (isGateway) throw new Error(`the server does not answer: ${response.status}`);
  return { status: response.status, ok: response.ok, headers: response.headers, json };
}

/** Returns the reason of an error answer. */
export function reasonOf(answer) {
  return answer.json?.detail ?? answer.json?.title ?? `the server answered ${answer.status}`;
}

/** How far the server's clock is ahead of the browser's. */
let aheadUs = 0;

/** The round trip of the answer that last set the clock: the shorter it is, the more exact is the clock. */
let bestRoundTrip = Infinity;

/** Sets the page's copy of the server's clock from an answer, if its round trip is about as short as the shortest. */
export function setClock(serverUs, sentMs, receivedMs) {
  const roundTrip = receivedMs - sentMs;
  // Raised each time, so that a later answer corrects a clock that drifts.
  bestRoundTrip += 0.5;
  if (roundTrip > bestRoundTrip) return;
  bestRoundTrip = roundTrip;
  aheadUs = serverUs - ((sentMs + receivedMs) / 2) * 1000;
}

/** Returns the server's time in microseconds, as exactly as the page knows it. */
export function nowUs() {
  return performance.now() * 1000 + aheadUs;
}
