-- What every algorithm does. Twin of algorithm.rs and algorithm/decide.rs, and of carry_over in
-- limit.rs: change both, then run the tests in tests/twins. Comes after muldiv.lua.
--
-- Pure: no redis.call, and time is an argument, in microseconds since the Unix epoch. A time and a
-- duration together may pass 2^53, so waits are made of differences.
--
-- limit         from an algorithm's `new`: `decide` is its table, `size` its limit or capacity
-- state         what is kept for a key, from `fresh`; check, settle and refund change it
-- standing      how a key stands at one instant: its state brought up to that time
-- cost          at least 1, below 2^53
-- max_wait_us   the longest delay the caller accepts, or nil for any
-- place         where a charge is: one or two numbers, to be kept with its cost as the receipt
-- What a check needs comes first, here and in each algorithm's file; a script that does nothing but
-- check leaves out what is beyond, and one that does not carry over what is last.
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

-- Restarts the state's time if now_us is so far behind that it must be another clock's. Every check
-- does this first, refused or not; is_restarted tells that there is something to keep even so.
local function settle(limit, state, now_us)
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

-- The time until more remains, if reset_after_us does not tell; otherwise 0.
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
  settle(limit, state, now_us)
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
  -- Past 2^53 this rounds, but not below 2^53: no now_us reaches it either way.
  local over_us = now_us + reset_after_us
  return true, remaining, nil, reset_after_us, delay_us, first_us,
    decide.place(limit, standing, over_us)
end

local algorithm = { check = check }

-- ---- beyond a check

-- The state to look at and its standing; a new clock restarts a copy.
local function look(limit, state, now_us)
  now_us = min(now_us, MAX_TIME_US)
  if limit.decide.floor_us(state) - now_us > MAX_STEP_BACK_US then
    state = limit.decide.copy(state)
    settle(limit, state, now_us)
  end
  return state, limit.decide.standing(limit, state, now_us)
end

algorithm.look = look

-- Gives back what of a charge still counts at now_us; returns how much more remains then.
-- The charge is known by its cost and by the place that `check` returned.
function algorithm.refund(limit, state, now_us, cost, place, place_too)
  now_us = min(now_us, MAX_TIME_US)
  local decide = limit.decide
  local _, standing = look(limit, state, now_us)
  local before = decide.remaining(limit, standing)
  decide.give_back(limit, state, now_us, cost, place, place_too)
  _, standing = look(limit, state, now_us)
  return max(decide.remaining(limit, standing) - before, 0)
end

function algorithm.settle(limit, state, now_us)
  settle(limit, state, min(now_us, MAX_TIME_US))
end

-- Decides one request and charges nothing. Returns what `check` does, without a place.
function algorithm.peek(limit, state, now_us, cost, max_wait_us)
  local seen, standing = look(limit, state, now_us)
  local is_allowed, delay_us, retry_after_us = verdict(limit, seen, standing, cost, max_wait_us)
  local remaining = limit.decide.remaining(limit, standing, max_wait_us)
  local reset_after_us = limit.decide.reset_after_us(limit, standing)
  return is_allowed, remaining, retry_after_us, reset_after_us, delay_us,
    first_back_us(limit, seen, standing, max_wait_us)
end

-- How many requests like this one fit, one after the other, at now_us.
function algorithm.fits(limit, state, now_us, cost, max_wait_us)
  local _, standing = look(limit, state, now_us)
  local decide = limit.decide
  if decide.fitting then
    return decide.fitting(limit, standing, cost, max_wait_us)
  end
  local remaining = decide.remaining(limit, standing, max_wait_us)
  return (remaining - remaining % cost) / cost
end

-- ---- carrying over

-- The whole units that are spent at now_us; a size that was lowered may be less. Past 2^53 a counter's
-- round, but not below 2^53.
local function spent(limit, state, now_us)
  local _, standing = look(limit, state, now_us)
  return min(limit.decide.spent(standing), TWO_53 - 1)
end

-- The same with another size, to decide by. A bucket's time_to_full_us stays: it may hold more.
local function with_size(limit, size)
  local other = {}
  for name, value in pairs(limit) do
    other[name] = value
  end
  other.size = size
  return other
end

-- How a key that reached `state` under the `old` limit goes on under this one, with a request of `cost`:
-- the limit to decide by, and the state; nil before them if it stays under the old limit. The state is
-- another table, but a log that stays a log is the same, and so is what stays. The buckets are one
-- algorithm here.
function algorithm.carry_over(limit, old, state, now_us, cost)
  now_us = min(now_us, MAX_TIME_US)
  local units, is_same = spent(old, state, now_us), limit.decide == old.decide
  -- Nothing is out of sight of a window of the same kind that is no shorter.
  local sees_all = is_same and limit.window_us and limit.window_us >= old.window_us
  local is_exact = is_same and not limit.decide.is_coarse
  local must_fit = is_same and limit.time_to_full_us and 0 or cost
  if units + must_fit > limit.size and not sees_all then
    return nil, with_size(old, limit.size), state
  elseif is_exact or sees_all then
    return true, limit, limit.decide.carry_over(limit, old, state, now_us)
  end
  return true, limit, limit.decide.after_spending(limit, units, now_us)
end

-- Of the time in which all that is spent comes back, what the last `units` of it take, rounded down:
-- none unless they come back one by one.
local function come_back_at_last_us(limit, units)
  local last_us = limit.time_to_full_us and muldiv(units, limit.per_us, limit.rate_units)
  return last_us or 0
end

-- The first_back_us of what this limit decided in place of the one that was asked for: if by that one
-- more would seem to remain at another time than it does, when it does.
function algorithm.in_place_of(limit, asked, remaining, reset_after_us, first_back_us)
  if first_back_us > 0 or remaining >= limit.size then
    return first_back_us
  end
  local others = limit.size - remaining - 1
  local last_us = come_back_at_last_us(limit, others)
  if max(reset_after_us - come_back_at_last_us(asked, others), 1) == reset_after_us - last_us then
    return 0
  end
  return reset_after_us - last_us
end
