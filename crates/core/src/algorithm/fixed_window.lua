-- Fixed window: a counter that starts again at every window. Twin of fixed_window.rs: change both,
-- then run the tests in tests/twins. Load it after algorithm.lua.
--
-- limit      size, window_us
-- window     start_us of the window last charged, and what was spent in it
-- standing   a window at an instant of its key's time, and the caller's now_us
-- place      start_us, window_us
-- Example    2 a minute, at 59 s: two requests are allowed, and a third waits 1 s for the next window
local fixed_window

local function new(limit, window_us)
  return { decide = fixed_window, size = limit, window_us = window_us }
end

local function fresh()
  return { start_us = 0, spent = 0 }
end

local function floor_us(window)
  return window.start_us
end

local function restart(limit, window, now_us)
  window.start_us = now_us - now_us % limit.window_us
end

local function standing(limit, window, now_us)
  local start_us = window.start_us
  local at_us = now_us > start_us and now_us or start_us
  if at_us - start_us < limit.window_us then
    return { start_us = start_us, spent = window.spent, now_us = now_us }
  end
  return { start_us = at_us - at_us % limit.window_us, spent = 0, now_us = now_us }
end

local function remaining(limit, standing)
  local left = limit.size - standing.spent
  return left > 0 and left or 0
end

-- The time until the window ends. Counted from the caller's time, so that the wait is correct even after
-- the clock has stepped back.
local function ends_after_us(limit, standing)
  return max(limit.window_us - (standing.now_us - standing.start_us), 0)
end

local function verdict(limit, _, standing, cost)
  if cost <= remaining(limit, standing) then
    return true, 0
  end
  return false, 0, ends_after_us(limit, standing)
end

local function charge(window, standing, cost)
  standing.spent = standing.spent + cost
  window.start_us, window.spent = standing.start_us, standing.spent
  return standing
end

local function place(limit, standing)
  return standing.start_us, limit.window_us
end

local function reset_after_us(limit, standing)
  if standing.spent == 0 then
    return 0
  end
  return ends_after_us(limit, standing)
end

fixed_window = {
  new = new, fresh = fresh, floor_us = floor_us, restart = restart, standing = standing,
  verdict = verdict, charge = charge, place = place, remaining = remaining,
  reset_after_us = reset_after_us,
}

-- ---- beyond a check

function fixed_window.copy(window)
  return { start_us = window.start_us, spent = window.spent }
end

function fixed_window.give_back(limit, window, now_us, cost, start_us, window_us)
  local has_ended = now_us - window.start_us >= limit.window_us
  if not has_ended and start_us == window.start_us and window_us == limit.window_us then
    window.spent = max(window.spent - cost, 0)
  end
end

-- ---- carrying over

-- A fixed window does not know when its units were spent.
fixed_window.is_coarse = true

function fixed_window.spent(standing)
  return standing.spent
end

function fixed_window.after_spending(limit, units, now_us)
  return { start_us = now_us - now_us % limit.window_us, spent = units }
end

-- The latest time at which a charge in the window starting at start_us can have been made.
local function latest_in_window_us(start_us, window_us, now_us)
  -- A clock that stepped back may show a time before the start: the key's time is the start then. The
  -- window's end may pass 2^53 and round: OK because no now_us reaches 2^53.
  return max(min(now_us, start_us + (window_us - 1)), start_us)
end

function fixed_window.carry_over(limit, old, window, now_us)
  local latest_us = latest_in_window_us(window.start_us, old.window_us, now_us)
  return fixed_window.after_spending(limit, window.spent, latest_us)
end
