-- Plays traces through the twins.
-- ARGV[i]    a trace: a line for the limit, then a line for each step
--              limit   algorithm, its numbers, and the units by which a log's sums are raised
--              step    check|peek|fits now_us cost max_wait_us|any
--                      refund now_us number: the number of the allowed check to refund
--                      reset now_us
--                      carry-over now_us limit: move to this limit from here on, if possible
--                      reserve now_us cost hold_for_us id
--                      settle now_us used expires_us id 0|1: whether the hold ends
--                      extend now_us more expires_us id hold_for_us
--                      take-back now_us less expires_us id granted_us
--                      lease now_us need|0 expires_us|none id used want most lease_for_us
--                      The id of a lease begins with an L.
-- Returns    for each trace a line for each step: the answer, then the state after it
-- Example    "fixed-window 2 60000000\ncheck 59000000 1 any" is
--            "allowed of 2, 1 left, retry nil, reset 1000000, delay 0, first 0; start 0 spent 1"

-- How many of a log's oldest and newest entries are shown.
local SHOWN = 8

-- A log in a Lua table, the simplest form.
local table_log = {}

function table_log.fresh()
  local log = { entries = {}, count = 0, base = 0, charged_us = 0 }
  for name, method in pairs(table_log) do
    log[name] = method
  end
  return log
end

function table_log.read(log, index)
  local entry = log.entries[index + 1]
  return entry.at_us, entry.through
end

function table_log.append(log, at_us, through)
  log.count = log.count + 1
  log.entries[log.count] = { at_us = at_us, through = through }
end

function table_log.drop(log, count)
  for _ = 1, count do
    table.remove(log.entries, 1)
  end
  log.count = log.count - count
end

function table_log.remove(log, index, cost)
  table.remove(log.entries, index + 1)
  log.count = log.count - 1
  for position = index + 1, log.count do
    local entry = log.entries[position]
    entry.through = entry.through - cost
  end
end

function table_log.move_back(log, back_us)
  for _, entry in ipairs(log.entries) do
    entry.at_us = math.max(entry.at_us - back_us, 0)
  end
end

function table_log.lower(log, units)
  for _, entry in ipairs(log.entries) do
    entry.through = entry.through - units
  end
end

function table_log.copy(log)
  local copy = table_log.fresh()
  copy.base, copy.charged_us = log.base, log.charged_us
  for index = 0, log.count - 1 do
    copy:append(log:read(index))
  end
  return copy
end

-- Raises a log's running sums once, as years of charges would.
local function age(log, units)
  if log.count > 0 and not log.has_aged then
    log:lower(-units)
    log.base = log.base + units
    log.has_aged = true
  end
end

sliding_window_log.fresh = table_log.fresh

-- Holds in Lua tables, the simplest form.
local table_holds = {}

local function no_holds()
  return setmetatable(
    { count = 0, units = {}, expires = {}, ids = {}, used_units = {} }, { __index = table_holds })
end

function table_holds.find(holds, id)
  for position = 1, holds.count do
    if holds.ids[position] == id then
      return position
    end
  end
end

function table_holds.id(holds, position)
  return holds.ids[position]
end

function table_holds.used(holds, position)
  return holds.used_units[position]
end

function table_holds.insert(holds, position, id, units, expires_us, used)
  table.insert(holds.ids, position, id)
  table.insert(holds.units, position, units)
  table.insert(holds.expires, position, expires_us)
  table.insert(holds.used_units, position, used)
  holds.count = holds.count + 1
end

function table_holds.set(holds, position, units, used)
  holds.units[position], holds.used_units[position] = units, used
end

function table_holds.remove(holds, position)
  for _, column in ipairs({ holds.ids, holds.units, holds.expires, holds.used_units }) do
    table.remove(column, position)
  end
  holds.count = holds.count - 1
end

function table_holds.drop(holds, count)
  for _ = 1, count do
    holds:remove(1)
  end
end

function table_holds.move_back(holds, back_us)
  for position = 1, holds.count do
    holds.expires[position] = math.max(holds.expires[position] - back_us, 0)
  end
end

-- The kind of place that each algorithm's charges have. A place of another kind is not valid for an algorithm
-- and becomes NOWHERE: a time that is never reached, and a charge that is already over.
local KIND = {
  [fixed_window] = "window", [sliding_window_counter] = "window", [sliding_window_log] = "entry",
  [bucket] = "bucket", [concurrency] = "none",
}
local NOWHERE = { place = 2 ^ 53, place_too = 0 }

local function digits(number)
  return number and string.format("%.0f", number) or "nil"
end

-- Returns the limit, the constructor of a fresh state, and the units by which a log's sums are raised.
local function parse_limit(line)
  local name, size, rate, per_us = line:match("(%S+) (%d+) (%d+) ?(%d*)")
  size, rate, per_us = tonumber(size), tonumber(rate), tonumber(per_us)
  if name == "fixed-window" then
    return fixed_window.new(size, rate), fixed_window.fresh
  elseif name == "sliding-window-counter" then
    return sliding_window_counter.new(size, rate), sliding_window_counter.fresh
  elseif name == "sliding-window-log" then
    local units = per_us
    return sliding_window_log.new(size, rate), table_log.fresh, units
  elseif name == "token-bucket" then
    return token_bucket.new(size, rate, per_us), bucket.fresh
  elseif name == "policing" then
    return leaky_bucket.policing(size, rate, per_us), bucket.fresh
  elseif name == "shaping" then
    return leaky_bucket.shaping(size, rate, per_us), bucket.fresh
  elseif name == "concurrency" then
    return concurrency.new(size), concurrency.fresh
  end
  error("unknown limit " .. line)
end

local function show_state(limit, state, now_us)
  if limit.decide == fixed_window then
    return "start " .. digits(state.start_us) .. " spent " .. digits(state.spent)
  elseif limit.decide == sliding_window_counter then
    return "start " .. digits(state.start_us) .. " current " .. digits(state.current)
      .. " previous " .. digits(state.previous)
  elseif limit.decide == sliding_window_log then
    local at_us = math.max(math.min(now_us, MAX_TIME_US), state.charged_us)
    local counting = sliding_window_log.first_counting(state, at_us, limit.window_us)
    local shown = { digits(state.count - counting) .. " entries" }
    for index = counting, state.count - 1 do
      if index - counting < SHOWN or index + SHOWN >= state.count then
        local entry_at_us, cost = sliding_window_log.entry(state, index)
        shown[#shown + 1] = digits(entry_at_us) .. ":" .. digits(cost)
      end
    end
    return table.concat(shown, " ")
  elseif limit.decide == concurrency then
    return "at " .. digits(state.at_us)
  end
  return "level " .. digits(state.units) .. "+" .. digits(state.fraction)
    .. " as of " .. digits(state.as_of_us) .. " charged " .. digits(state.charged)
end

local function show_decision(
  limit, is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us)
  return (is_allowed and "allowed" or "denied") .. " of " .. digits(limit.size)
    .. ", " .. digits(remaining) .. " left, retry " .. digits(retry_after_us)
    .. ", reset " .. digits(reset_after_us) .. ", delay " .. digits(delay_us)
    .. ", first " .. digits(first_back_us)
end

-- Returns an id as the 8 bytes that stand for it in these traces. As in all ids, the highest bit says that it is of a
-- lease.
local function id_of(text)
  local number = text:match("^L(%d+)")
  return number and "\128" .. string.format("%07d", number) or string.format("%08d", text)
end

local function show_id(id)
  return id:byte() == 128 and "L" .. digits(tonumber(id:sub(2))) or digits(tonumber(id))
end

local function show_holds(holds)
  local shown = {}
  for position = 1, holds.count do
    shown[position] = " held " .. show_id(holds:id(position))
      .. ":" .. digits(holds.units[position]) .. ":" .. digits(holds.expires[position])
      .. ":" .. digits(holds:used(position))
  end
  return table.concat(shown)
end

local function play(trace)
  local lines = trace:gmatch("[^\n]+")
  local limit, fresh, age_units = parse_limit(lines())
  local state, holds, receipts, shown = fresh(), no_holds(), {}, {}
  local function keep_receipt(cost, place, place_too)
    receipts[#receipts + 1] =
      { cost = cost, kind = KIND[limit.decide], place = place, place_too = place_too }
  end
  for line in lines do
    local step, now_us, cost, max_wait_us = line:match("(%S+) (%d+) ?(%d*) ?(%S*)")
    now_us, cost, max_wait_us = tonumber(now_us), tonumber(cost), tonumber(max_wait_us)
    if age_units then
      age(state, age_units)
    end
    local answer
    if step == "check" then
      local checked = holds.count > 0 and { held.check(limit, state, holds, now_us, cost) }
        or { algorithm.check(limit, state, now_us, cost, max_wait_us) }
      if checked[1] then
        keep_receipt(cost, checked[7], checked[8])
      end
      answer = show_decision(limit, unpack(checked, 1, 6))
    elseif step == "peek" and holds.count > 0 then
      answer = show_decision(limit, held.peek(limit, state, holds, now_us, cost))
    elseif step == "peek" then
      answer = show_decision(limit, algorithm.peek(limit, state, now_us, cost, max_wait_us))
    elseif step == "fits" then
      answer = "fits " .. digits(algorithm.fits(limit, state, now_us, cost, max_wait_us))
    elseif step == "refund" then
      local receipt = receipts[cost]
      local at = receipt.kind == KIND[limit.decide] and receipt or NOWHERE
      local back = holds.count > 0
        and held.refund(limit, state, holds, now_us, receipt.cost, at.place, at.place_too)
        or algorithm.refund(limit, state, now_us, receipt.cost, at.place, at.place_too)
      answer = "refunded " .. digits(back)
    elseif step == "reset" then
      state, holds = fresh(), no_holds()
      answer = "reset"
    elseif step == "reserve" then
      local hold_for_us, id = line:match("%S+ %d+ %d+ (%d+) (%S+)")
      local reserved = { held.reserve(
        limit, state, holds, now_us, id_of(id), cost, tonumber(hold_for_us)) }
      answer = show_decision(limit, unpack(reserved, 1, 6)) .. ", until " .. digits(reserved[7])
    elseif step == "settle" then
      local expires_us, id, last = line:match("%S+ %d+ %d+ (%d+) (%S+) (%d)")
      local done, charged, excess, cut, freed, place, place_too = held.settle(
        limit, state, holds, now_us, id_of(id), tonumber(expires_us), cost, last == "1")
      if done == "done" then
        if charged > 0 then
          keep_receipt(charged, place, place_too)
        end
        answer = "done " .. digits(charged) .. " " .. digits(excess) .. " " .. digits(cut) .. " "
          .. digits(freed)
      else
        answer = done
      end
      answer = answer .. ", "
        .. show_decision(limit, held.decision_after(limit, state, holds, now_us, done == "done"))
    elseif step == "extend" then
      local expires_us, id, hold_for_us = line:match("%S+ %d+ %d+ (%d+) (%S+) (%d+)")
      local done, until_us, units = held.extend(
        limit, state, holds, now_us, id_of(id), tonumber(expires_us), cost,
        tonumber(hold_for_us))
      local after
      if done == "refused" then
        after = show_decision(limit, held.peek_units(limit, state, holds, now_us, cost))
      else
        after = show_decision(limit, held.decision_after(limit, state, holds, now_us, done == "granted"))
      end
      if until_us then
        done = done .. " " .. digits(until_us) .. " " .. digits(units)
      end
      answer = done .. ", " .. after
    elseif step == "lease" then
      local expires_us, id, used, want, most, lease_for_us =
        line:match("%S+ %d+ %d+ (%S+) (%S+) (%d+) (%d+) (%d+) (%d+)")
      local _, decided, what, unused, until_us, lasts_us, leases =
        held.lease(limit, state, holds, now_us, {
          id = id_of(id), expires_us = tonumber(expires_us), used = tonumber(used),
          want = tonumber(want), most = tonumber(most), lease_for_us = tonumber(lease_for_us),
          need = cost > 0 and cost or nil,
        })
      if decided[1] and cost > 0 then
        keep_receipt(cost, decided[7], decided[8])
      end
      answer = what
      if what == "open" then
        answer = table.concat({ what, digits(unused), digits(until_us), digits(lasts_us),
          digits(leases) }, " ")
      end
      answer = answer .. ", " .. show_decision(limit, unpack(decided, 1, 6))
    elseif step == "take-back" then
      local expires_us, id, granted_us = line:match("%S+ %d+ %d+ (%d+) (%S+) (%d+)")
      local done, until_us, units = held.take_back(
        limit, state, holds, now_us, id_of(id), tonumber(expires_us), cost,
        tonumber(granted_us))
      local after = show_decision(
        limit, held.decision_after(limit, state, holds, now_us, done == "granted"))
      if until_us then
        done = done .. " " .. digits(until_us) .. " " .. digits(units)
      end
      answer = done .. ", " .. after
    elseif step == "carry-over" then
      local new, new_fresh, new_age_units = parse_limit(line:match("%S+ %d+ (.+)"))
      local is_done
      if holds.count > 0 then
        is_done, limit, state = held.carry_over(new, limit, state, holds, now_us, 1)
      else
        is_done, limit, state = algorithm.carry_over(new, limit, state, now_us, 1)
      end
      if is_done then
        fresh, age_units = new_fresh, new_age_units
      end
      answer = "carried over"
    else
      error("unknown step " .. line)
    end
    shown[#shown + 1] =
      answer .. "; " .. show_state(limit, state, now_us) .. show_holds(holds)
  end
  return table.concat(shown, "\n")
end

local answers = {}
for index, trace in ipairs(ARGV) do
  answers[index] = play(trace)
end
return answers
