-- Sliding window log: every charge, for exactly one window. Twin of sliding_window_log.rs: change
-- both, then run the tests in tests/twins. Load it after algorithm.lua.
--
-- limit      size, window_us
-- log        count, the number of charges kept; base, the running sum before the oldest; charged_us,
--            when it was last charged, also if that charge was refunded. A charge is its time and the
--            running sum of costs up to and including it. The script that makes the log stores the
--            charges and their count, and gives the log these methods:
--              log:read(index)            at_us and through of the charge at index, 0 the oldest
--              log:append(at_us, through)
--              log:drop(count)            removes the oldest
--              log:remove(index, cost)    removes the charge at index, of that cost
--              log:move_back(back_us)     makes every charge earlier, at 0 at the earliest
--              log:lower(units)           lowers every running sum
--              log:copy()                 an independent copy
--            A log may keep the index of a charge that was removed: log:read then returns a charge of
--            cost 0, which is never the newest, and log.has_holes is true.
--            To carry over, sliding_window_log.fresh() makes a log without charges.
-- standing   counting, the index of the oldest charge that counts; spent, newest_us, at_us, and the
--            caller's now_us
-- place      at_us
-- Example    3 a minute, charged at 0 s, 10 s and 20 s: at 30 s one more waits 30 s for the first
local sliding_window_log

local function new(limit, window_us)
  return { decide = sliding_window_log, size = limit, window_us = window_us }
end

-- When the newest charge was made, and the running sum of everything charged.
local function newest(log)
  if log.count == 0 then
    return 0, log.base
  end
  return log:read(log.count - 1)
end

-- The running sum before the charge at index.
local function before(log, index)
  if index == 0 then
    return log.base
  end
  local _, through = log:read(index - 1)
  return through
end

local function is_at_or_before(then_us, at_us)
  return at_us <= then_us
end

local function is_through_less_than(sum, _, through)
  return through < sum
end

-- The index of the first charge for which `property` is false. It must be true for the oldest charges, up to
-- some charge, and false for all later charges. Reads up to 4 charges from the oldest on, then searches:
-- another 16 reads in a log of 65,536.
local function first_without(log, property, bound)
  local count = log.count
  for index = 0, 3 do
    if index >= count or not property(bound, log:read(index)) then
      return index
    end
  end
  local low, high = 4, count
  while low < high do
    local middle = (low + high - (low + high) % 2) / 2
    if property(bound, log:read(middle)) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- The index of the oldest charge that counts at at_us: a charge at t counts before t + window.
local function first_counting(log, at_us, window_us)
  return first_without(log, is_at_or_before, at_us - window_us)
end

-- Drops the `count` oldest charges.
local function forget(log, count)
  log.base = count < log.count and before(log, count) or 0
  if count > 0 then
    log:drop(count)
  end
end

-- The time until a charge leaves the window. Counted from the caller's time, so that the wait is correct
-- even after the clock has stepped back.
local function leaves_after_us(limit, charged_us, standing)
  return max(limit.window_us - (standing.now_us - charged_us), 0)
end

local function floor_us(log)
  return log.charged_us
end

local function restart(_, log, now_us)
  local back_us = max(log.charged_us - now_us, 0)
  log:move_back(back_us)
  log.charged_us = now_us
end

local function standing(limit, log, now_us)
  local newest_us, through = newest(log)
  local at_us = now_us > log.charged_us and now_us or log.charged_us
  local counting = first_counting(log, at_us, limit.window_us)
  local spent = through - before(log, counting)
  return {
    counting = counting, spent = spent, newest_us = newest_us,
    at_us = at_us, now_us = now_us,
  }
end

local function remaining(limit, standing)
  local left = limit.size - standing.spent
  return left > 0 and left or 0
end

-- The wait until at most `most` units count; more than `most` count now.
local function falls_to_after_us(limit, log, standing, most)
  local must_leave = standing.spent - most
  local left = before(log, standing.counting) + must_leave
  local last_to_leave = first_without(log, is_through_less_than, left)
  local at_us = standing.newest_us
  if last_to_leave < log.count then
    at_us = log:read(last_to_leave)
  end
  return leaves_after_us(limit, at_us, standing)
end

local function verdict(limit, log, standing, cost)
  if cost <= remaining(limit, standing) then
    return true, 0
  end
  return false, 0, falls_to_after_us(limit, log, standing, limit.size - cost)
end

local function charge(log, standing, cost)
  forget(log, standing.counting)
  local at_us = standing.at_us
  local _, through = newest(log)
  -- The running sum grows as long as any charge counts. Rust has 64 bits for it; here it is lowered
  -- before it reaches 2^53.
  if through > 2 ^ 52 then
    log:lower(log.base)
    log.base, through = 0, through - log.base
  end
  log:append(at_us, through + cost)
  log.charged_us = at_us
  standing.counting = 0
  standing.spent = standing.spent + cost
  standing.newest_us = at_us
  return standing
end

local function place(_, standing)
  return standing.newest_us
end

local function reset_after_us(limit, standing)
  if standing.spent == 0 then
    return 0
  end
  return leaves_after_us(limit, standing.newest_us, standing)
end

-- When the oldest charge leaves; if the limit was lowered below what is spent, when enough have left.
local function first_back_us(limit, log, standing)
  local spent = standing.spent
  if spent == 0 then
    return 0
  elseif spent > limit.size then
    return falls_to_after_us(limit, log, standing, limit.size - 1)
  end
  local oldest = standing.counting
  if log.has_holes then
    oldest = first_without(log, is_through_less_than, before(log, oldest) + 1)
  end
  -- A corrupt log may have no charge that counts.
  local oldest_us = oldest < log.count and log:read(oldest) or standing.newest_us
  return leaves_after_us(limit, oldest_us, standing)
end

sliding_window_log = {
  new = new, floor_us = floor_us, restart = restart, standing = standing, verdict = verdict,
  charge = charge, place = place, remaining = remaining, reset_after_us = reset_after_us,
  first_back_us = first_back_us,
}

-- ---- beyond a check

sliding_window_log.first_counting, sliding_window_log.forget = first_counting, forget

function sliding_window_log.copy(log)
  return log:copy()
end

-- The time and the cost of the charge at index.
local function entry(log, index)
  local at_us, through = log:read(index)
  return at_us, through - before(log, index)
end

sliding_window_log.entry = entry

local function is_before(then_us, at_us)
  return at_us < then_us
end

-- The most charges of one microsecond that a refund reads. A batch makes at most 64. More exist only if
-- callers give their own times, or after the clock has stepped back: then a refund may give nothing
-- back.
local MAX_EQUAL_TIMES = 512

-- Charges of the same time and cost are interchangeable: removes any of them.
function sliding_window_log.give_back(limit, log, now_us, cost, at_us)
  local counting = first_counting(log, max(now_us, log.charged_us), limit.window_us)
  local first = max(first_without(log, is_before, at_us), counting)
  local before_entry = before(log, first)
  for index = first, min(log.count, first + MAX_EQUAL_TIMES) - 1 do
    local entry_at_us, through = log:read(index)
    if entry_at_us ~= at_us then
      return
    end
    if through - before_entry == cost then
      return log:remove(index, cost)
    end
    before_entry = through
  end
end

-- ---- carrying over

function sliding_window_log.spent(standing)
  return standing.spent
end

function sliding_window_log.after_spending(_, units, now_us)
  local log = sliding_window_log.fresh()
  if units > 0 then
    log:append(now_us, units)
  end
  log.charged_us = now_us
  return log
end

-- Charges keep their times. The new window decides which of them count.
function sliding_window_log.carry_over(_, _, log)
  return log
end
