// What each card is about. Names and parameters are the API's.

const WINDOW = [
  { name: "maxRequests", label: "requests", min: 1, max: 1000, step: 1, value: 10 },
  { name: "windowSeconds", label: "every … seconds", min: 0.1, max: 3600, step: "any", value: 10 },
];

export const ALGORITHMS = [
  {
    id: "fixed-window",
    title: "Fixed window",
    choose: "For quotas by the hour or day that people read on an invoice.",
    costs: "One counter a client. Around the turn of a window twice the limit can pass.",
    parameters: WINDOW,
  },
  {
    id: "sliding-window-log",
    title: "Sliding window log",
    choose: "Where the limit must hold in any window: logins, payments.",
    costs: "16 bytes for every request of the window. The limit is never exceeded.",
    parameters: WINDOW,
  },
  {
    id: "sliding-window-counter",
    title: "Sliding window counter",
    choose: "For large limits that need no sharp edge.",
    costs: "Two counters a client. It assumes that the requests of the last window came evenly.",
    parameters: WINDOW,
  },
  {
    id: "token-bucket",
    title: "Token bucket",
    choose: "For APIs: a burst is fine after a rest, and the mean rate holds.",
    costs: "One number and one time a client. Bursts up to its size pass at once.",
    parameters: [
      { name: "maxTokens", label: "size", min: 1, max: 1000, step: 1, value: 10 },
      { name: "refillRate", label: "refill a second", min: 0.01, max: 1000, step: "any", value: 1 },
    ],
  },
  {
    id: "leaky-bucket",
    title: "Leaky bucket",
    choose: "To protect what is behind it: policing refuses what would overflow, shaping lets it out evenly.",
    costs: "As much as a token bucket; what is shaped takes longer.",
    parameters: [
      { name: "capacity", label: "size", min: 1, max: 1000, step: 1, value: 10 },
      { name: "leakRate", label: "leak a second", min: 0.01, max: 1000, step: "any", value: 1 },
      { name: "mode", label: "mode", options: ["policing", "shaping"], value: "policing" },
    ],
  },
];
