-- The bucket that the token bucket and both leaky buckets are: a level that drains at a rate. Twin
-- of bucket.rs: change both, then run the tests in tests/twins. Comes after algorithm.lua.
--
-- limit      size, the capacity; rate_units per per_us, in lowest terms; time_to_full_us;
--            is_shaping
-- level      two numbers: whole units, and a fraction in parts of per_us
-- fill       the level, units and fraction, at as_of_us, when it was last charged; charged, the
--            units charged so far, counted round 2^53
-- standing   a fill at an instant of its key's time; whole, its units rounded up; and now_us
-- place      charged, over_us
-- Example    a 10/s bucket of 5, charged 3 at once: 2 remain, and it is whole again after 300 ms
--
-- A level is at most the capacity, which drains within 100 years: no wait passes 2^53.
local bucket = {}

-- The limit of a bucket that does not shape.
function bucket.new(capacity, rate_units, per_us)
  local limit = { decide = bucket, size = capacity, rate_units = rate_units, per_us = per_us }
  limit.time_to_full_us = bucket.drain_time_us(limit, capacity, 0)
  limit.is_shaping = false
  return limit
end

function bucket.fresh()
  return { units = 0, fraction = 0, as_of_us = 0, charged = 0 }
end

function bucket.copy(fill)
  return {
    units = fill.units, fraction = fill.fraction,
    as_of_us = fill.as_of_us, charged = fill.charged,
  }
end

-- The fill at now_us, or as it was if that is earlier: units, fraction, as_of_us.
function bucket.fill_at(limit, fill, now_us)
  local as_of_us = max(now_us, fill.as_of_us)
  local units, fraction =
    bucket.drained(limit, fill.units, fill.fraction, as_of_us - fill.as_of_us)
  return units, fraction, as_of_us
end

-- What is left of a level after elapsed_us, if it was at most the capacity.
function bucket.drained(limit, units, fraction, elapsed_us)
  -- Rust asks here whether the level has drained: that is quicker there, and slower here.
  if elapsed_us >= limit.time_to_full_us then
    return 0, 0
  end
  local gone, gone_fraction = muldiv(elapsed_us, limit.rate_units, limit.per_us)
  return bucket.saturating_minus(units, fraction, gone, gone_fraction, limit.per_us)
end

-- Whole units, rounded up.
function bucket.ceil(units, fraction)
  return fraction > 0 and units + 1 or units
end

function bucket.saturating_minus(units, fraction, other_units, other_fraction, period_us)
  local borrows = fraction < other_fraction
  local taken = borrows and other_units + 1 or other_units
  if units < taken then
    return 0, 0
  end
  local borrowed = borrows and period_us or 0
  return units - taken, fraction - other_fraction + borrowed
end

-- How long this much takes to drain, rounded up.
function bucket.drain_time_us(limit, units, fraction)
  local parts = units * limit.per_us + fraction
  if parts >= TWO_53 then
    return bucket.drain_time_wide_us(limit, units, fraction)
  end
  if limit.rate_units == 1 then
    return parts
  end
  local rest = parts % limit.rate_units
  local whole_us = (parts - rest) / limit.rate_units
  return rest > 0 and whole_us + 1 or whole_us
end

function bucket.drain_time_wide_us(limit, units, fraction)
  local rate_units = limit.rate_units
  local whole_us, parts = muldiv(units, limit.per_us, rate_units)
  local fraction_us, rest = muldiv(fraction, 1, rate_units)
  whole_us = whole_us + fraction_us
  -- parts + rest rounded up to whole rate_units: none, one or two, without adding past 2^53.
  if rest > rate_units - parts then
    return whole_us + 2
  end
  return parts + rest > 0 and whole_us + 1 or whole_us
end

-- The units charged, counted round 2^53; subtracts first, to stay below 2^53.
function bucket.charged_with(charged, cost)
  return (charged - TWO_53 + cost) % TWO_53
end

-- The units charged since the count stood at `charged`.
function bucket.charged_since(fill, charged)
  return (fill.charged - charged) % TWO_53
end

-- How long a request admitted at this level waits: until what is before it has left.
function bucket.delay_us(limit, units, fraction)
  return limit.is_shaping and bucket.drain_time_us(limit, units, fraction) or 0
end

function bucket.floor_us(fill)
  return fill.as_of_us
end

function bucket.restart(_, fill, now_us)
  fill.as_of_us = now_us
end

function bucket.standing(limit, fill, now_us)
  local units, fraction, as_of_us = bucket.fill_at(limit, fill, now_us)
  return {
    units = units, fraction = fraction, as_of_us = as_of_us, charged = fill.charged,
    whole = bucket.ceil(units, fraction), now_us = now_us,
  }
end

function bucket.verdict(limit, _, standing, cost, max_wait_us)
  local units, fraction = standing.units, standing.fraction
  local delay_us = bucket.delay_us(limit, units, fraction)
  local impatient_us = max_wait_us and max(delay_us - max_wait_us, 0) or 0
  local fitting = limit.size - cost
  if standing.whole <= fitting and impatient_us == 0 then
    return true, delay_us
  end
  local excess, excess_fraction =
    bucket.saturating_minus(units, fraction, fitting, 0, limit.per_us)
  local drain_us = max(bucket.drain_time_us(limit, excess, excess_fraction), impatient_us)
  return false, 0, bucket.caller_waits_us(standing, drain_us)
end

function bucket.charge(fill, standing, cost)
  -- OK because what fits leaves no more than the capacity.
  standing.units = standing.units + cost
  standing.whole = standing.whole + cost
  standing.charged = bucket.charged_with(standing.charged, cost)
  fill.units, fill.fraction = standing.units, standing.fraction
  fill.as_of_us, fill.charged = standing.as_of_us, standing.charged
  return standing
end

function bucket.place(_, standing, over_us)
  return standing.charged, over_us
end

function bucket.remaining(limit, standing, max_wait_us)
  if max_wait_us and bucket.delay_us(limit, standing.units, standing.fraction) > max_wait_us then
    return 0
  end
  return max(limit.size - standing.whole, 0)
end

function bucket.fitting(limit, standing, cost, max_wait_us)
  local remaining = bucket.remaining(limit, standing, max_wait_us)
  local by_room = (remaining - remaining % cost) / cost
  -- Who waits as long as a full bucket takes is bound by room alone. Below that, what drains
  -- meanwhile is less than the capacity: no quotient passes 2^53.
  local is_patient = not max_wait_us or max_wait_us >= limit.time_to_full_us
  if is_patient or not limit.is_shaping or by_room == 0 then
    return by_room
  end
  -- Each but the last must leave a level that drains within the caller's patience.
  local patience, patience_fraction = muldiv(max_wait_us, limit.rate_units, limit.per_us)
  local slack = bucket.saturating_minus(
    patience, patience_fraction, standing.units, standing.fraction, limit.per_us)
  return min(by_room, (slack - slack % cost) / cost + 1)
end

function bucket.reset_after_us(limit, standing)
  local units, fraction = standing.units, standing.fraction
  if units == 0 and fraction == 0 then
    return 0
  end
  return bucket.caller_waits_us(standing, bucket.drain_time_us(limit, units, fraction))
end

-- Units leave in the order they came, so what is above all that was charged since is this charge's
-- own, and is given back. A place in a shaping bucket is given back only whole, and only if nobody
-- is behind it.
function bucket.give_back(limit, fill, now_us, cost, charged, over_us)
  -- A key that was forgotten and came back counts from nothing: the time tells what has left.
  if now_us >= over_us then
    return
  end
  local since = bucket.charged_since(fill, charged)
  local units, fraction = bucket.fill_at(limit, fill, now_us)
  local left, left_fraction = bucket.saturating_minus(units, fraction, since, 0, limit.per_us)
  if left >= cost then
    left, left_fraction = cost, 0
  end
  local is_whole_and_last = left == cost and since == 0
  if limit.is_shaping and not is_whole_and_last then
    return
  end
  if is_whole_and_last then
    -- As if it had never been charged: the one before it is the last again.
    fill.charged = (fill.charged - cost) % TWO_53
  end
  fill.units, fill.fraction =
    bucket.saturating_minus(fill.units, fill.fraction, left, left_fraction, limit.per_us)
end

-- A wait that begins at the key's own time, counted from the caller's.
function bucket.caller_waits_us(standing, wait_us)
  return standing.as_of_us - standing.now_us + wait_us
end
