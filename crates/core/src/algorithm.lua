-- The code that all algorithms share. Twin of algorithm.rs and algorithm/decide.rs, and of carry_over
-- in limit.rs: change both, then run the tests in tests/twins. Load it after muldiv.lua.
--
-- Pure: no redis.call, and time is an argument, in microseconds since the Unix epoch. A time and a
-- duration together may pass 2^53, so waits are made of differences.
--
-- limit         from an algorithm's `new`: `decide` is its table, `size` its limit or capacity
-- state         a key's stored state, from `fresh`; check, restart_clock and refund change it
-- standing      a key's state brought up to one instant
-- cost          at least 1, below 2^53
-- max_wait_us   the longest delay the caller accepts, or nil for any
-- place         where a charge is in the state: one or two numbers, kept with its cost as the receipt
--
-- Here and in each algorithm's file, the functions that a check needs come first. A script that only
-- checks leaves out the sections "beyond a check" and "carrying over"; a script that never carries
-- over leaves out the latter.
--
-- Example       local limit, state = fixed_window.new(2, 60000000), fixed_window.fresh()
--               algorithm.check(limit, state, 59000000, 2) is
--                 true, 0, nil, 1000000, 0, 0, 0, 60000000
--               algorithm.check(limit, state, 59000000, 1) is false, 0, 1000000, 1000000, 0, 0
local MAX_STEP_BACK_US = 10000000
local MAX_TIME_US = 2 ^ 53 - 1

-- The wait of a cost above the limit: longer than any other.
local NEVER = math.huge

local max, min = math.max, math.min

-- Restarts the state's clock if now_us is so far behind the floor that it must be from another clock.
-- Every check does this first. is_restarted says that the state has to be stored even after a refusal.
local function restart_clock(limit, state, now_us)
  local decide = limit.decide
  if decide.floor_us(state) - now_us > MAX_STEP_BACK_US then
    decide.restart(limit, state, now_us)
    state.is_restarted = true
  end
end

-- The verdict on a request of any cost: is_allowed, delay_us, and retry_after_us when denied.
local function verdict(limit, state, standing, cost, max_wait_us)
  if cost > limit.size then
    return false, 0, NEVER
  end
  return limit.decide.verdict(limit, state, standing, cost, max_wait_us)
end

-- The time until more remains, if it cannot be computed from reset_after_us; otherwise 0.
local function first_back_us(limit, state, standing, max_wait_us)
  local decide = limit.decide
  return decide.first_back_us and decide.first_back_us(limit, state, standing, max_wait_us) or 0
end

-- Decides one request and charges it if it is allowed. Returns is_allowed, remaining,
-- retry_after_us (nil when allowed), reset_after_us, delay_us, first_back_us, and when allowed its
-- place.
local function check(limit, state, now_us, cost, max_wait_us)
  if now_us > MAX_TIME_US then
    now_us = MAX_TIME_US
  end
  restart_clock(limit, state, now_us)
  local decide = limit.decide
  local standing = decide.standing(limit, state, now_us)
  local is_allowed, delay_us, retry_after_us = verdict(limit, state, standing, cost, max_wait_us)
  if is_allowed then
    standing = decide.charge(state, standing, cost)
  end
  local remaining = decide.remaining(limit, standing, max_wait_us)
  local reset_after_us = decide.reset_after_us(limit, standing)
  local first_us = first_back_us(limit, state, standing, max_wait_us)
  if not is_allowed then
    return false, remaining, retry_after_us, reset_after_us, 0, first_us
  end
  -- OK because a sum above 2^53 may round, but not to below 2^53, and no now_us reaches 2^53.
  local over_us = now_us + reset_after_us
  return true, remaining, nil, reset_after_us, delay_us, first_us,
    decide.place(limit, standing, over_us)
end

local algorithm = { check = check }

-- ---- beyond a check

-- Returns the state to read and its standing. On a new clock the state is a restarted copy.
local function read_standing(limit, state, now_us)
  now_us = min(now_us, MAX_TIME_US)
  if limit.decide.floor_us(state) - now_us > MAX_STEP_BACK_US then
    state = limit.decide.copy(state)
    restart_clock(limit, state, now_us)
  end
  return state, limit.decide.standing(limit, state, now_us)
end

algorithm.read_standing = read_standing

-- Gives back the part of a charge that still counts at now_us. Returns by how much `remaining` grew.
-- The charge is identified by its cost and by the place that `check` returned: `place`, and `place_too` if the
-- place is two numbers.
function algorithm.refund(limit, state, now_us, cost, place, place_too)
  now_us = min(now_us, MAX_TIME_US)
  local decide = limit.decide
  local _, standing = read_standing(limit, state, now_us)
  local before = decide.remaining(limit, standing)
  decide.give_back(limit, state, now_us, cost, place, place_too)
  _, standing = read_standing(limit, state, now_us)
  return max(decide.remaining(limit, standing) - before, 0)
end

function algorithm.restart_clock(limit, state, now_us)
  restart_clock(limit, state, min(now_us, MAX_TIME_US))
end

-- Decides one request and charges nothing. Returns the same values as `check`, without the place.
function algorithm.peek(limit, state, now_us, cost, max_wait_us)
  local seen, standing = read_standing(limit, state, now_us)
  local is_allowed, delay_us, retry_after_us =
    (limit.decide.peek_verdict or verdict)(limit, seen, standing, cost, max_wait_us)
  local remaining = limit.decide.remaining(limit, standing, max_wait_us)
  local reset_after_us = limit.decide.reset_after_us(limit, standing)
  return is_allowed, remaining, retry_after_us, reset_after_us, delay_us,
    first_back_us(limit, seen, standing, max_wait_us)
end

-- Returns how many requests of this cost fit at now_us, one after the other.
function algorithm.fits(limit, state, now_us, cost, max_wait_us)
  local _, standing = read_standing(limit, state, now_us)
  local decide = limit.decide
  if decide.fitting then
    return decide.fitting(limit, standing, cost, max_wait_us)
  end
  local remaining = decide.remaining(limit, standing, max_wait_us)
  return (remaining - remaining % cost) / cost
end

-- ---- carrying over

-- The whole units that are spent at now_us: possibly more than the size, if that was lowered. A
-- counter's units above 2^53 may round, but not to below 2^53.
local function spent(limit, state, now_us)
  local _, standing = read_standing(limit, state, now_us)
  return min(limit.decide.spent(standing), TWO_53 - 1)
end

-- Copies the limit with another size. A bucket keeps its time_to_full_us, because its level may be
-- above the new size.
local function with_size(limit, size)
  local other = {}
  for name, value in pairs(limit) do
    other[name] = value
  end
  other.size = size
  return other
end

-- A window of the same kind that is no shorter counts everything that the old one counts, and so does a
-- limit on held units of one on held units.
local function counts_all_of(limit, old)
  if limit.decide ~= old.decide then
    return false
  end
  return limit.decide.only_holds or limit.window_us and limit.window_us >= old.window_us
end

-- Whether a key that has spent `units` under the `old` limit can move to this one, for a request that needs
-- room for `more`.
local function takes_over(limit, old, units, more)
  local are_buckets = limit.decide == old.decide and limit.time_to_full_us
  local must_fit = are_buckets and 0 or more
  return units + must_fit <= limit.size or counts_all_of(limit, old)
end

-- The state of a key that moves to this limit.
local function carried(limit, old, state, units, now_us)
  local is_exact = limit.decide == old.decide and not limit.decide.is_coarse
  if is_exact or counts_all_of(limit, old) then
    return limit.decide.carry_over(limit, old, state, now_us)
  end
  return limit.decide.after_spending(limit, units, now_us)
end

algorithm.with_size, algorithm.takes_over, algorithm.carried = with_size, takes_over, carried

-- Moves a key from the `old` limit, under which it reached `state`, to this one, for a request of
-- `cost`. Returns true, the limit to decide by, and the state; nil instead of true if the key stays
-- under the old limit for now. The state is a new table, except that of a log that stays a log and of
-- a key that stays under the old limit. Token and leaky buckets count as one algorithm here.
function algorithm.carry_over(limit, old, state, now_us, cost)
  now_us = min(now_us, MAX_TIME_US)
  local units = spent(old, state, now_us)
  if not takes_over(limit, old, units, cost) then
    return nil, with_size(old, limit.size), state
  end
  return true, limit, carried(limit, old, state, units, now_us)
end

-- The time that the last `units` take to come back, rounded down, if units come back one by one, as a
-- bucket's do; otherwise 0.
local function come_back_at_last_us(limit, units)
  local last_us = limit.time_to_full_us and muldiv(units, limit.per_us, limit.rate_units)
  return last_us or 0
end

-- Returns the first_back_us to report when this limit decided instead of the limit `requested`.
-- A client knows only `requested`: if computing from it would give another time until more remains, the
-- result is the correct time.
function algorithm.in_place_of(limit, requested, remaining, reset_after_us, first_back_us)
  if first_back_us > 0 or remaining >= limit.size then
    return first_back_us
  end
  local others = limit.size - remaining - 1
  local last_us = come_back_at_last_us(limit, others)
  if max(reset_after_us - come_back_at_last_us(requested, others), 1) == reset_after_us - last_us then
    return 0
  end
  return reset_after_us - last_us
end
