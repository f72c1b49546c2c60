-- Sliding window counter: two counters approximate the log. Twin of sliding_window_counter.rs:
-- change both, then run the tests in tests/twins. Load it after algorithm.lua and, to carry over,
-- after fixed_window.lua.
--
-- limit      size, window_us
-- windows    start_us of the window last charged, its units `current`, `previous` of the one before
-- standing   windows at an instant of their key's time, `in_view`, the whole units of the previous
--            one still in view, `in_view_part` of one more, and the caller's now_us
-- place      start_us, window_us
-- Example    100 a minute, 80 in the previous one and 50 in this one, at 30 s: the estimate is 90
local sliding_window_counter

local function new(limit, window_us)
  return { decide = sliding_window_counter, size = limit, window_us = window_us }
end

local function fresh()
  return { start_us = 0, current = 0, previous = 0 }
end

-- The two windows that count at at_us, a time not before start_us: start_us, current, previous.
local function rolled_to(windows, at_us, window_us)
  if at_us - windows.start_us < window_us then
    return windows.start_us, windows.current, windows.previous
  end
  local start_us = at_us - at_us % window_us
  local is_next = start_us - windows.start_us == window_us
  return start_us, 0, is_next and windows.current or 0
end

local function floor_us(windows)
  return windows.start_us
end

local function restart(limit, windows, now_us)
  windows.start_us = now_us - now_us % limit.window_us
end

local function standing(limit, windows, now_us)
  local at_us = now_us > windows.start_us and now_us or windows.start_us
  local start_us, current, previous = rolled_to(windows, at_us, limit.window_us)
  local in_view_us = limit.window_us - (at_us - start_us)
  -- OK because no more than the window is in view: the quotient is at most `previous`.
  local in_view, in_view_part = muldiv(previous, in_view_us, limit.window_us)
  return {
    start_us = start_us, current = current, previous = previous,
    in_view = in_view, in_view_part = in_view_part, now_us = now_us,
  }
end

-- The whole units of the estimate. After a step back of the clock it can be twice the limit. Above
-- 2^53 it rounds, but not to below 2^53: nothing remains either way.
local function estimate(standing)
  return standing.current + standing.in_view
end

local function remaining(limit, standing)
  local left = limit.size - estimate(standing)
  return left > 0 and left or 0
end

-- The longest part of a window with `spent` units that can be in view while at most `most` whole
-- units of it are in view: the greatest v with spent * v < (most + 1) * window.
local function in_view_at_most_us(limit, spent, most)
  -- The whole window may be in view. OK because below, the quotient is at most the window.
  if most >= spent then
    return limit.window_us
  end
  local whole, part = muldiv(most + 1, limit.window_us, spent)
  if part == 0 then
    return whole - 1
  end
  return whole
end

-- The exact wait until the estimate's whole units are at most `most`; they are above it now.
-- Computed from the window's start, then converted to the caller's time.
local function falls_to_after_us(limit, standing, most)
  local window_us, current, previous = limit.window_us, standing.current, standing.previous
  local then_us
  if most >= current then
    then_us = window_us - in_view_at_most_us(limit, previous, most - current)
  else
    then_us = 2 * window_us - in_view_at_most_us(limit, current, most)
  end
  return max(then_us - (standing.now_us - standing.start_us), 0)
end

local function verdict(limit, _, standing, cost)
  if cost <= remaining(limit, standing) then
    return true, 0
  end
  return false, 0, falls_to_after_us(limit, standing, limit.size - cost)
end

local function charge(windows, standing, cost)
  standing.current = standing.current + cost
  windows.start_us = standing.start_us
  windows.current, windows.previous = standing.current, standing.previous
  return standing
end

local function place(limit, standing)
  return standing.start_us, limit.window_us
end

local function reset_after_us(limit, standing)
  if estimate(standing) == 0 then
    return 0
  end
  return falls_to_after_us(limit, standing, 0)
end

local function first_back_us(limit, _, standing)
  if estimate(standing) > limit.size then
    return falls_to_after_us(limit, standing, limit.size - 1)
  end
  local behind_us = standing.start_us - standing.now_us
  if standing.in_view > 0 then
    -- When the part of a unit has left the view: each microsecond takes `previous` off that part.
    local part, previous = standing.in_view_part, standing.previous
    return max(behind_us, 0) + (part - part % previous) / previous + 1
  elseif standing.current > 0 then
    -- One microsecond into the next window, when the current window begins to leave the view.
    return behind_us + limit.window_us + 1
  end
  return 0
end

sliding_window_counter = {
  new = new, fresh = fresh, floor_us = floor_us, restart = restart, standing = standing,
  verdict = verdict, charge = charge, place = place, remaining = remaining,
  reset_after_us = reset_after_us, first_back_us = first_back_us,
}

-- ---- beyond a check

function sliding_window_counter.copy(windows)
  return { start_us = windows.start_us, current = windows.current, previous = windows.previous }
end

function sliding_window_counter.give_back(limit, windows, now_us, cost, start_us, window_us)
  local is_out_of_view = now_us - start_us >= 2 * window_us
  if is_out_of_view or window_us ~= limit.window_us then
    return
  end
  if start_us == windows.start_us then
    windows.current = max(windows.current - cost, 0)
  elseif windows.start_us - start_us == window_us then
    windows.previous = max(windows.previous - cost, 0)
  end
end

-- ---- carrying over

-- A counter does not know when in a window its units were spent.
sliding_window_counter.is_coarse = true

function sliding_window_counter.spent(standing)
  return estimate(standing)
end

function sliding_window_counter.after_spending(limit, units, now_us)
  return { start_us = now_us - now_us % limit.window_us, current = units, previous = 0 }
end

function sliding_window_counter.carry_over(limit, old, windows, now_us)
  local start_us, current, previous = windows.start_us, windows.current, windows.previous
  local latest_us = latest_in_window_us(start_us, old.window_us, now_us)
  local carried = sliding_window_counter.after_spending(limit, current, latest_us)
  if start_us == 0 then
    return carried
  end
  local previous_end_us = start_us - 1
  local previous_start_us = previous_end_us - previous_end_us % limit.window_us
  if previous_start_us == carried.start_us then
    -- OK because a sum above 2^53 may round, but not to below 2^53.
    carried.current = min(current + previous, TWO_53 - 1)
  elseif carried.start_us - previous_start_us == limit.window_us then
    carried.previous = previous
  end
  return carried
end
