// Advances the state of an algorithm that has holds: a hold that expires is spent at that instant.

/**
 * Returns a session's state under an algorithm at a later time. Holds that have expired by then are part of `state`, `holds`
 * has only the others, and `held` is the sum of their units.
 */
export function advance(view, nowUs) {
  const open = view.holds.filter((hold) => hold.expires_us > nowUs);
  const expired = view.holds.filter((hold) => hold.expires_us <= nowUs);
  const held = open.reduce((sum, { units }) => sum + units, 0);
  return { ...expired.reduce(spend, view), holds: open, held };
}

/** Returns the level of a bucket at a time. It decreases at the rate of the limit. */
export function level({ state, now_us: asOfUs, decides }, nowUs) {
  return Math.max(0, state.level - ((nowUs - asOfUs) / 1e6) * decides.per_second);
}

/** Returns the counts of the window that starts at a time, and of the window before it. */
export function pairAt({ start_us: ofUs, current, previous }, startUs, windowUs) {
  if (ofUs === startUs) return { start_us: startUs, current, previous };
  return { start_us: startUs, current: 0, previous: ofUs === startUs - windowUs ? current : 0 };
}

/** Returns the state after the expiry of a hold. */
function spend(view, { units, expires_us: atUs }) {
  const { state, decides: { window_us: windowUs } } = view;
  const startUs = Math.floor(atUs / windowUs) * windowUs;
  const after = (state) => ({ ...view, now_us: atUs, state });
  if (state.window) {
    const { start_us: ofUs, spent } = state.window;
    return after({ window: ofUs >= startUs ? { start_us: ofUs, spent: spent + units } : { start_us: startUs, spent: units } });
  }
  if (state.entries) return after({ entries: [...state.entries, ...Array.from({ length: units }, () => atUs)] });
  if (state.pair) {
    const pair = pairAt(state.pair, startUs, windowUs);
    return after({ pair: { ...pair, current: pair.current + units } });
  }
  if (state.level !== undefined) return after({ level: level(view, atUs) + units });
  return view;
}
