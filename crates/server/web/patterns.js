// Patterns of traffic. Times are in milliseconds.

/** The number of parts of the time in the picture. */
export const BINS = 60;

/** The largest number of requests that the server accepts. */
const MAX_REQUESTS = 2_000;

/** Returns the times of `count` requests, `stepMs` apart. */
export const burst = (atMs, count, stepMs) => Array.from({ length: count }, (_, at) => atMs + at * stepMs);

/** Returns the patterns for a limit of `limit` requests in `seconds` seconds. A pattern is three windows long. */
export function patterns({ limit, seconds }) {
  const window = seconds * 1000;
  const at = (share, count) => burst(Math.round(share * window), count, Math.floor((window * 0.02) / count));
  const many = Math.ceil(limit * 1.2);
  return {
    boundary: { words: "a burst at a window boundary", times: [...at(0.975, limit), ...at(1.005, limit)] },
    steady: { words: "steady, at twice the limit", times: burst(0, limit * 6, window / (limit * 2)).map(Math.round) },
    bursts: { words: `bursts of ${many}`, times: [0, 0.5, 1, 1.5, 2, 2.5].flatMap((share) => at(share + 0.02, many)) },
  };
}

/** Returns how many of the times are in each part of a length of `seconds`. */
export function binned(times, seconds) {
  const bins = Array.from({ length: BINS }, () => 0);
  for (const ms of times) bins[Math.min(Math.floor((ms / (seconds * 1000)) * BINS), BINS - 1)] += 1;
  return bins;
}

/** Parses a text such as `0.2*10 3`. Returns the times in milliseconds, or the problem as a string. */
export function parse(text, seconds) {
  const times = [];
  for (const word of text.replace(/\s*([*x×])\s*/g, "$1").split(/,?\s+/).filter(Boolean)) {
    const [, at, count = "1"] = /^(\d+(?:\.\d+)?)(?:[*x×](\d+))?$/.exec(word) ?? [];
    if (at === undefined) return `${word.slice(0, 20)} is not a time; write seconds with spaces between them, such as 1.5 or 1.5*10`;
    if (Number(at) > seconds) return `${at.slice(0, 20)} is too late; use 0 to ${seconds}`;
    if (times.length + Number(count) > MAX_REQUESTS) return `more than ${MAX_REQUESTS} requests; send fewer`;
    times.push(...burst(Math.round(Number(at) * 1000), Number(count), 0));
  }
  return times.sort((a, b) => a - b);
}
