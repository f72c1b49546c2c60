// What each card is about. Names and parameters are the API's.

const WINDOW = [
  { name: "maxRequests", label: "requests", min: 1, max: 1000, step: 1, value: 10 },
  { name: "windowSeconds", label: "in seconds", min: 1, max: 3600, step: 1, value: 10 },
];

export const ALGORITHMS = [
  {
    id: "fixed-window",
    title: "Fixed window",
    why: "Choose it for quotas per day or hour that people read on an invoice. It costs one counter a client, and lets up to twice the limit through around the turn of a window.",
    parameters: WINDOW,
  },
  {
    id: "sliding-window-log",
    title: "Sliding window log",
    why: "Choose it where the limit must hold in any window: logins, payments. It costs 16 bytes for every request of the window, and is never exceeded.",
    parameters: WINDOW,
  },
  {
    id: "sliding-window-counter",
    title: "Sliding window counter",
    why: "Choose it for large limits that need no sharp edge. It costs two counters a client, and takes the last window to have been even.",
    parameters: WINDOW,
  },
  {
    id: "token-bucket",
    title: "Token bucket",
    why: "Choose it for APIs: a burst is fine after a rest, and the mean rate holds. It costs one number and one time a client.",
    parameters: [
      { name: "maxTokens", label: "tokens", min: 1, max: 1000, step: 1, value: 10 },
      { name: "refillRate", label: "back a second", min: 0.01, max: 1000, step: "any", value: 1 },
    ],
  },
  {
    id: "leaky-bucket",
    title: "Leaky bucket",
    why: "Policing refuses what would overflow; shaping makes requests wait their turn, so what comes out is even. It costs as much as a token bucket.",
    parameters: [
      { name: "capacity", label: "holds", min: 1, max: 1000, step: 1, value: 10 },
      { name: "leakRate", label: "out a second", min: 0.01, max: 1000, step: "any", value: 1 },
      { name: "mode", label: "mode", options: ["policing", "shaping"], value: "policing" },
    ],
  },
];
