// Traffic, as times in milliseconds.

/** Into so many parts the time is divided, to be drawn. */
export const BINS = 60;

/** The server takes as many. */
const MAX_REQUESTS = 2_000;

export const burst = (atMs, count, stepMs) => Array.from({ length: count }, (_, at) => atMs + at * stepMs);

/** What there is to send to limits of so many requests in so many seconds, for three times as long. */
export function patterns({ limit, seconds }) {
  const window = seconds * 1000;
  const at = (share, count) => burst(Math.round(share * window), count, Math.floor((window * 0.02) / count));
  const many = Math.ceil(limit * 1.2);
  return {
    boundary: { words: "a burst across a boundary", times: [...at(0.975, limit), ...at(1.005, limit)] },
    steady: { words: "twice the rate, steadily", times: burst(0, limit * 6, window / (limit * 2)).map(Math.round) },
    bursts: { words: `bursts of ${many}`, times: [0, 0.5, 1, 1.5, 2, 2.5].flatMap((share) => at(share + 0.02, many)) },
  };
}

/** How many of these times are in each part of so many seconds. */
export function binned(times, seconds) {
  const bins = Array.from({ length: BINS }, () => 0);
  for (const ms of times) bins[Math.min(Math.floor((ms / (seconds * 1000)) * BINS), BINS - 1)] += 1;
  return bins;
}

/** `0.2*10 3`: the times in milliseconds, or what is wrong. */
export function parse(text, seconds) {
  const times = [];
  for (const word of text.replace(/\s*([*x×])\s*/g, "$1").split(/,?\s+/).filter(Boolean)) {
    const [, at, count = "1"] = /^(\d+(?:\.\d+)?)(?:[*x×](\d+))?$/.exec(word) ?? [];
    if (at === undefined) return `${word.slice(0, 20)} is no time; write seconds with spaces between them, such as 1.5 or 1.5*10`;
    if (Number(at) > seconds) return `${at.slice(0, 20)} is too late; use 0 to ${seconds}`;
    if (times.length + Number(count) > MAX_REQUESTS) return `more than ${MAX_REQUESTS} requests; send fewer`;
    times.push(...burst(Math.round(Number(at) * 1000), Number(count), 0));
  }
  return times.sort((one, other) => one - other);
}
