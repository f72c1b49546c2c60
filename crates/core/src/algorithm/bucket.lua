-- The bucket behind the token bucket and both leaky buckets: a level that drains at a rate. Twin of
-- bucket.rs: change both, then run the tests in tests/twins. Load it after algorithm.lua.
--
-- limit      size, the capacity; rate_units per per_us, in lowest terms; time_to_full_us, in which
--            full_units drain; is_shaping
-- level      two numbers: whole units, and a fraction in parts of per_us
-- fill       the level, units and fraction, at as_of_us, when it was last charged; charged, the
--            units charged so far, modulo 2^53
-- standing   a fill at an instant of its key's time; whole, its units rounded up; and now_us
-- place      charged, over_us
-- Example    a 10/s bucket of 5, charged 3 at once: 2 remain, and all 5 do after 300 ms
--
-- A level is at most the capacity, which drains within 100 years, or what may be taken beside holds
-- (holds.lua), which drains within 2^53 us: no wait passes 2^53.
local bucket

local function fresh()
  return { units = 0, fraction = 0, as_of_us = 0, charged = 0 }
end

local function saturating_minus(units, fraction, other_units, other_fraction, period_us)
  local borrows = fraction < other_fraction
  local taken = borrows and other_units + 1 or other_units
  if units < taken then
    return 0, 0
  end
  local borrowed = borrows and period_us or 0
  return units - taken, fraction - other_fraction + borrowed
end

local function drain_time_wide_us(limit, units, fraction)
  local rate_units = limit.rate_units
  local whole_us, parts = muldiv(units, limit.per_us, rate_units)
  local fraction_us, rest = muldiv(fraction, 1, rate_units)
  whole_us = whole_us + fraction_us
  -- parts + rest, rounded up to whole rate_units: 0, 1 or 2. Compared so that no sum passes 2^53.
  if rest > rate_units - parts then
    return whole_us + 2
  end
  return parts + rest > 0 and whole_us + 1 or whole_us
end

-- Returns how long this level takes to drain, rounded up.
local function drain_time_us(limit, units, fraction)
  local parts = units * limit.per_us + fraction
  if parts >= TWO_53 then
    return drain_time_wide_us(limit, units, fraction)
  end
  if limit.rate_units == 1 then
    return parts
  end
  local rest = parts % limit.rate_units
  local whole_us = (parts - rest) / limit.rate_units
  return rest > 0 and whole_us + 1 or whole_us
end

-- Returns what is left of a level after elapsed_us.
local function drained(limit, units, fraction, elapsed_us)
  -- Rust compares with the level's own drain time here: that is faster in Rust, and slower in Lua. A level
  -- that was settled beyond its hold can take longer than a full bucket.
  if elapsed_us >= limit.time_to_full_us
    and (units < limit.full_units or elapsed_us >= drain_time_us(limit, units, fraction)) then
    return 0, 0
  end
  local gone, gone_fraction = muldiv(elapsed_us, limit.rate_units, limit.per_us)
  return saturating_minus(units, fraction, gone, gone_fraction, limit.per_us)
end

-- The limit of a bucket that does not shape.
local function new(capacity, rate_units, per_us)
  local limit = {
    decide = bucket, size = capacity, rate_units = rate_units, per_us = per_us,
    time_to_full_us = 0, full_units = capacity, is_shaping = false,
  }
  limit.time_to_full_us = drain_time_us(limit, capacity, 0)
  return limit
end

-- Converts a wait from the key's own time to one from the caller's time.
local function caller_waits_us(standing, wait_us)
  return standing.as_of_us - standing.now_us + wait_us
end

local function floor_us(fill)
  return fill.as_of_us
end

local function restart(_, fill, now_us)
  fill.as_of_us = now_us
end

-- The fill at now_us; unchanged if now_us is before the last charge.
local function standing(limit, fill, now_us)
  local as_of_us = now_us > fill.as_of_us and now_us or fill.as_of_us
  local units, fraction = drained(limit, fill.units, fill.fraction, as_of_us - fill.as_of_us)
  return {
    units = units, fraction = fraction, as_of_us = as_of_us, charged = fill.charged,
    whole = fraction > 0 and units + 1 or units, now_us = now_us,
  }
end

local function verdict(limit, _, standing, cost, max_wait_us)
  local units, fraction = standing.units, standing.fraction
  -- An admitted request waits until everything before it has left.
  local delay_us = limit.is_shaping and drain_time_us(limit, units, fraction) or 0
  local excess_delay_us = max_wait_us and max(delay_us - max_wait_us, 0) or 0
  local fitting = limit.size - cost
  if standing.whole <= fitting and excess_delay_us == 0 then
    return true, delay_us
  end
  local excess, excess_fraction = saturating_minus(units, fraction, fitting, 0, limit.per_us)
  local drain_us = max(drain_time_us(limit, excess, excess_fraction), excess_delay_us)
  return false, 0, caller_waits_us(standing, drain_us)
end

local function charge(fill, standing, cost)
  -- OK because what fits leaves no more than the capacity.
  standing.units = standing.units + cost
  standing.whole = standing.whole + cost
  -- Modulo 2^53; subtracts first, to stay below 2^53.
  standing.charged = (standing.charged - TWO_53 + cost) % TWO_53
  fill.units, fill.fraction = standing.units, standing.fraction
  fill.as_of_us, fill.charged = standing.as_of_us, standing.charged
  return standing
end

local function place(_, standing, over_us)
  return standing.charged, over_us
end

local function remaining(limit, standing, max_wait_us)
  if max_wait_us and limit.is_shaping
    and drain_time_us(limit, standing.units, standing.fraction) > max_wait_us then
    return 0
  end
  local left = limit.size - standing.whole
  return left > 0 and left or 0
end

local function reset_after_us(limit, standing)
  local units, fraction = standing.units, standing.fraction
  if units == 0 and fraction == 0 then
    return 0
  end
  return caller_waits_us(standing, drain_time_us(limit, units, fraction))
end

-- Returns how long a caller that accepts a delay of at most max_wait_us must wait until a request fits.
-- At that moment `remaining` may rise from 0 to all the free capacity. 0 if the delay is short enough
-- now.
local function first_back_us(limit, _, standing, max_wait_us)
  if not (max_wait_us and limit.is_shaping) then
    return 0
  end
  local units, fraction = standing.units, standing.fraction
  local excess_delay_us = drain_time_us(limit, units, fraction) - max_wait_us
  if excess_delay_us <= 0 then
    return 0
  end
  local excess, excess_fraction =
    saturating_minus(units, fraction, limit.size - 1, 0, limit.per_us)
  local drain_us = drain_time_us(limit, excess, excess_fraction)
  return caller_waits_us(standing, max(excess_delay_us, drain_us))
end

bucket = {
  new = new, fresh = fresh, floor_us = floor_us, restart = restart, standing = standing,
  verdict = verdict, charge = charge, place = place, remaining = remaining,
  reset_after_us = reset_after_us, first_back_us = first_back_us,
}

-- ---- beyond a check

bucket.drain_time_us, bucket.drained = drain_time_us, drained

function bucket.copy(fill)
  return {
    units = fill.units, fraction = fill.fraction,
    as_of_us = fill.as_of_us, charged = fill.charged,
  }
end

function bucket.fitting(limit, standing, cost, max_wait_us)
  local left = remaining(limit, standing, max_wait_us)
  local by_capacity = (left - left % cost) / cost
  -- A caller that accepts the time in which a full bucket drains is limited by the free capacity alone.
  -- OK because in a shorter wait less than the capacity drains: no quotient passes 2^53.
  local accepts_any_delay = not max_wait_us or max_wait_us >= limit.time_to_full_us
  if accepts_any_delay or not limit.is_shaping or by_capacity == 0 then
    return by_capacity
  end
  -- Each request but the last must leave a level that drains within max_wait_us.
  local max_units, max_fraction = muldiv(max_wait_us, limit.rate_units, limit.per_us)
  local free = saturating_minus(
    max_units, max_fraction, standing.units, standing.fraction, limit.per_us)
  return min(by_capacity, (free - free % cost) / cost + 1)
end

-- The units charged since the count was `charged`.
local function charged_since(fill, charged)
  return (fill.charged - charged) % TWO_53
end

-- Units drain in the order they were charged. So the part of the level that exceeds all later charges
-- belongs to this charge, and is given back. A shaping bucket gives a charge back only if all of it is
-- still in the bucket and no later charge is.
function bucket.give_back(limit, fill, now_us, cost, charged, over_us)
  -- At over_us the charge has drained. The count alone does not show that: it starts again at 0 when a
  -- key's state is created again after an eviction.
  if now_us >= over_us then
    return
  end
  local since = charged_since(fill, charged)
  local at_now = standing(limit, fill, now_us)
  local left, left_fraction =
    saturating_minus(at_now.units, at_now.fraction, since, 0, limit.per_us)
  if left >= cost then
    left, left_fraction = cost, 0
  end
  local is_whole_and_last = left == cost and since == 0
  if limit.is_shaping and not is_whole_and_last then
    return
  end
  if is_whole_and_last then
    -- As if it had never been charged: the charge before it is the last one again.
    fill.charged = (fill.charged - cost) % TWO_53
  end
  fill.units, fill.fraction =
    saturating_minus(fill.units, fill.fraction, left, left_fraction, limit.per_us)
end

-- ---- carrying over

function bucket.spent(standing)
  return standing.whole
end

function bucket.after_spending(_, units, now_us)
  -- The count starts at the time, so that no earlier receipt matches a later charge.
  return { units = units, fraction = 0, as_of_us = now_us, charged = now_us }
end

-- The same amount at another rate, its fraction rounded up.
local function at_period(units, fraction, from_us, to_us)
  -- OK because a fraction is below its period: the quotient is below the new one.
  local whole, part = muldiv(fraction, to_us, from_us)
  whole = part > 0 and whole + 1 or whole
  if whole < to_us then
    return units, whole
  end
  return units + 1, 0
end

-- The level drains at the old rate until now, when it must fit.
function bucket.carry_over(limit, old, fill, now_us)
  local at_now = standing(old, fill, now_us)
  local units, fraction = at_period(at_now.units, at_now.fraction, old.per_us, limit.per_us)
  return {
    units = units, fraction = fraction, as_of_us = at_now.as_of_us, charged = at_now.charged,
  }
end
