// The algorithms of the cards: their texts and parameters. The ids and the names of parameters are the API's.

const WINDOW = [
  { name: "maxRequests", label: "max requests", min: 1, max: 1000, step: 1, value: 10 },
  { name: "windowSeconds", label: "window (s)", min: 0.1, max: 3600, step: "any", value: 10 },
];

export const ALGORITHMS = [
  {
    id: "fixed-window",
    title: "Fixed window",
    choose: "For hourly or daily quotas, such as the quota of a price plan.",
    costs: "One counter per client. At the boundary of two windows, up to twice the limit can pass.",
    parameters: WINDOW,
  },
  {
    id: "sliding-window-log",
    title: "Sliding window log",
    choose: "Where the limit must hold in every window, for example for logins and payments.",
    costs: "16 bytes for each request in the window. The limit is never exceeded.",
    parameters: WINDOW,
  },
  {
    id: "sliding-window-counter",
    title: "Sliding window counter",
    choose: "For large limits that need not be exact.",
    costs: "Two counters per client. It assumes that the requests of the previous window were evenly spread.",
    parameters: WINDOW,
  },
  {
    id: "token-bucket",
    title: "Token bucket",
    choose: "For APIs: a client that was idle can send a burst, and its average rate stays limited.",
    costs: "One number and one time per client. A burst of up to its size passes at once.",
    parameters: [
      { name: "maxTokens", label: "size", min: 1, max: 1000, step: 1, value: 10 },
      { name: "refillRate", label: "refill per s", min: 0.01, max: 1000, step: "any", value: 1 },
    ],
  },
  {
    id: "leaky-bucket",
    title: "Leaky bucket",
    choose: "To protect a slow service: policing refuses requests that overflow the bucket, shaping delays requests so that they leave at an even rate.",
    costs: "As much as a token bucket. Shaped requests take longer.",
    parameters: [
      { name: "capacity", label: "size", min: 1, max: 1000, step: 1, value: 10 },
      { name: "leakRate", label: "leak per s", min: 0.01, max: 1000, step: "any", value: 1 },
      { name: "mode", label: "mode", options: ["policing", "shaping"], value: "policing" },
    ],
  },
  {
    id: "concurrency",
    title: "Concurrency limit",
    choose: "To bound how many jobs run at the same time: exports, uploads, calls of an LLM.",
    costs: "One hold for each running job. The place of a job that crashes is free when its hold expires.",
    /** It decides when jobs start and end, and no requests. */
    jobs: true,
    parameters: [
      { name: "maxConcurrent", label: "places", min: 1, max: 20, step: 1, value: 5 },
      { name: "holdSeconds", label: "hold for (s)", min: 0.1, max: 3600, step: "any", value: 10 },
    ],
  },
];
