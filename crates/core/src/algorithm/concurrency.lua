-- Concurrency: units that are only ever held. Twin of concurrency.rs: change both, then run the tests in
-- tests/twins. Load it after algorithm.lua.
--
-- limit      size
-- clock      at_us, the time of the last operation that changed the holds of the key; 0 without holds
-- standing   a clock that is not behind the caller's
-- Example    10 at a time: ten reservations are admitted, and an eleventh waits for the first expiry

-- only_holds: the units are never charged. Settlement and expiry free them.
local concurrency = { only_holds = true }

function concurrency.new(limit)
  return { decide = concurrency, size = limit }
end

function concurrency.fresh()
  return { at_us = 0 }
end

function concurrency.floor_us(clock)
  return clock.at_us
end

function concurrency.restart(_, clock, now_us)
  clock.at_us = now_us
end

function concurrency.standing(_, clock, now_us)
  return { at_us = max(now_us, clock.at_us) }
end

-- A check never fits: nothing would ever give its units back.
function concurrency.verdict()
  return false, 0, NEVER
end

function concurrency.charge(clock, standing)
  clock.at_us = standing.at_us
  return standing
end

function concurrency.remaining(limit)
  return limit.size
end

function concurrency.reset_after_us()
  return 0
end

-- ---- beyond a check

function concurrency.copy(clock)
  return { at_us = clock.at_us }
end

-- The verdict on a reservation by a key without holds, which a peek reports.
function concurrency.peek_verdict(limit, _, _, cost)
  if cost > limit.size then
    return false, 0, NEVER
  end
  return true, 0
end

function concurrency.give_back()
end

-- Called after each operation that changed the key, with the holds that are left.
function concurrency.after_change(clock, holds)
  if holds.count == 0 then
    clock.at_us = 0
  end
end

-- ---- carrying over

function concurrency.spent()
  return 0
end

-- Units that were spent under another limit do not count, because they are not held.
function concurrency.after_spending()
  return concurrency.fresh()
end

-- For a key without holds. `held.carry_over` sets the clock of a key with holds.
function concurrency.carry_over()
  return concurrency.fresh()
end
