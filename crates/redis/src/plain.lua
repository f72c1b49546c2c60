-- Decides a batch of plain checks of windows and buckets, with the same results as check.lua and the twins.
-- Each algorithm is one function, without the tables and calls that take most of the time in check.lua: a
-- check takes half the time. A test compares the two. Comes after muldiv.lua; the sections of algorithms
-- that the batch does not need are left out.
--
-- KEYS, ARGV   as in check.lua, with plain checks only, and no log
-- Returns      as in check.lua
-- Example      as in check.lua
local ANSWER, ANSWER_AND_FIRST_BACK = "<BI7I7I7", "<BI7I7I7I7"
local DENIED, DENIED_FOR_EVER, ALLOWED, ALLOWED_LATER, FAILED, PUT_OFF = 0, 1, 2, 3, 5, 6
local AND_FIRST_BACK = 8
local CORRUPT = "CORRUPT"
local MAX_STEP_BACK_US = 10000000
local struct_pack, struct_unpack, redis_pcall, KEYS = struct.pack, struct.unpack, redis.pcall, KEYS

local now_us
do
  local time = redis.call("TIME")
  now_us = time[1] * 1000000 + time[2]
end

local function packed_denial(limit, cost, remaining, reset_after_us, retry_after_us)
  if cost > limit.size then
    return struct_pack(ANSWER, DENIED_FOR_EVER, remaining, reset_after_us, 0)
  end
  return struct_pack(ANSWER, DENIED, remaining, reset_after_us, retry_after_us)
end

-- Each algorithm takes a limit, the bytes of a state and a cost, and returns
--   the packed answer; nil if the bytes are not a state, false if they are a state of another limit
--   the new bytes of the state, nil if nothing changed
--   when the new state may expire, as in states.lua, and whether the old state expires at the same time

-- ---- fixed window

local function check_fixed_window(limit, value, cost)
  local tag, start_us, spent = struct_unpack(limit.format, value)
  if tag ~= limit.tag then
    return false
  elseif start_us >= TWO_53 or spent >= TWO_53 then
    return nil
  end
  local window_us, kept_us, restarted = limit.window_us, start_us, nil
  if start_us - now_us > MAX_STEP_BACK_US then
    start_us = now_us - now_us % window_us
    restarted = struct_pack("<c0I7I7", tag, start_us, spent)
  end
  local at_us = now_us > start_us and now_us or start_us
  if at_us - start_us >= window_us then
    start_us, spent = at_us - at_us % window_us, 0
  end
  local ends_after_us = window_us - (now_us - start_us)
  local remaining = limit.size - spent
  if cost <= remaining then
    return struct_pack(ANSWER, ALLOWED, remaining - cost, ends_after_us, start_us),
      struct_pack("<c0I7I7", tag, start_us, spent + cost), start_us + window_us,
      start_us == kept_us
  end
  remaining = remaining > 0 and remaining or 0
  local reset_after_us = spent > 0 and ends_after_us or 0
  return packed_denial(limit, cost, remaining, reset_after_us, ends_after_us),
    restarted, start_us + window_us, false
end

-- ---- sliding window counter

-- As in sliding_window_counter.lua.
local function in_view_at_most_us(window_us, spent, most)
  if most >= spent then
    return window_us
  end
  local whole, part = muldiv(most + 1, window_us, spent)
  return part == 0 and whole - 1 or whole
end

local function falls_to_after_us(window_us, start_us, current, previous, most)
  local then_us
  if most >= current then
    then_us = window_us - in_view_at_most_us(window_us, previous, most - current)
  else
    then_us = 2 * window_us - in_view_at_most_us(window_us, current, most)
  end
  local wait_us = then_us - (now_us - start_us)
  return wait_us > 0 and wait_us or 0
end

local function check_sliding_window_counter(limit, value, cost)
  local tag, start_us, current, previous = struct_unpack(limit.format, value)
  if tag ~= limit.tag then
    return false
  elseif start_us >= TWO_53 or current >= TWO_53 or previous >= TWO_53 then
    return nil
  end
  local window_us, kept_us, restarted = limit.window_us, start_us, nil
  if start_us - now_us > MAX_STEP_BACK_US then
    start_us = now_us - now_us % window_us
    restarted = struct_pack("<c0I7I7I7", tag, start_us, current, previous)
  end
  local at_us = now_us > start_us and now_us or start_us
  if at_us - start_us >= window_us then
    local next_us = at_us - at_us % window_us
    previous = next_us - start_us == window_us and current or 0
    start_us, current = next_us, 0
  end
  local in_view, in_view_part = muldiv(previous, window_us - (at_us - start_us), window_us)
  local estimate = current + in_view
  local remaining = limit.size - estimate
  local expires_us = start_us + 2 * window_us
  if cost <= remaining then
    current = current + cost
    local reset_after_us = falls_to_after_us(window_us, start_us, current, previous, 0)
    local first_back_us = start_us - now_us + window_us + 1
    if in_view > 0 then
      first_back_us = at_us - now_us + (in_view_part - in_view_part % previous) / previous + 1
    end
    return struct_pack(ANSWER_AND_FIRST_BACK,
        ALLOWED + AND_FIRST_BACK, remaining - cost, reset_after_us, start_us, first_back_us),
      struct_pack("<c0I7I7I7", tag, start_us, current, previous), expires_us,
      start_us == kept_us
  end
  remaining = remaining > 0 and remaining or 0
  if estimate == 0 then
    -- Nothing is spent, so the cost is more than the limit.
    return packed_denial(limit, cost, remaining, 0, 0), restarted, expires_us, false
  end
  local reset_after_us = falls_to_after_us(window_us, start_us, current, previous, 0)
  local first_back_us =
    falls_to_after_us(window_us, start_us, current, previous, limit.size - remaining - 1)
  local status, retry_after_us = DENIED_FOR_EVER, 0
  if cost <= limit.size then
    status = DENIED
    retry_after_us = falls_to_after_us(window_us, start_us, current, previous, limit.size - cost)
  end
  return struct_pack(ANSWER_AND_FIRST_BACK,
      status + AND_FIRST_BACK, remaining, reset_after_us, retry_after_us, first_back_us),
    restarted, expires_us, false
end

-- ---- buckets

-- As in bucket.lua.
local function drain_time_us(limit, units, fraction)
  local rate_units, per_us = limit.rate_units, limit.per_us
  local parts = units * per_us + fraction
  if parts < TWO_53 then
    local rest = parts % rate_units
    local whole_us = (parts - rest) / rate_units
    return rest > 0 and whole_us + 1 or whole_us
  end
  local whole_us, part = muldiv(units, per_us, rate_units)
  local fraction_us, rest = muldiv(fraction, 1, rate_units)
  whole_us = whole_us + fraction_us
  if rest > rate_units - part then
    return whole_us + 2
  end
  return part + rest > 0 and whole_us + 1 or whole_us
end

local EXPIRY_STEP_US = 8000000

local function expires_us(over_us)
  return over_us - over_us % EXPIRY_STEP_US + EXPIRY_STEP_US
end

local function check_bucket(limit, value, cost)
  local tag, units, fraction, as_of_us, charged = struct_unpack(limit.format, value)
  local size, per_us = limit.size, limit.per_us
  if tag ~= limit.tag then
    return false
  elseif units >= size and (units > size or fraction > 0) then
    return nil
  elseif fraction >= per_us or as_of_us >= TWO_53 or charged >= TWO_53 then
    return nil
  end
  local kept_until_us, restarted = expires_us(as_of_us + drain_time_us(limit, units, fraction)), nil
  if as_of_us - now_us > MAX_STEP_BACK_US then
    as_of_us = now_us
    restarted = struct_pack("<c0I7I7I7I7", tag, units, fraction, as_of_us, charged)
  end
  local at_us = now_us > as_of_us and now_us or as_of_us
  if at_us - as_of_us >= limit.time_to_full_us then
    units, fraction = 0, 0
  else
    local gone, gone_fraction = muldiv(at_us - as_of_us, limit.rate_units, per_us)
    if fraction < gone_fraction then
      gone, fraction = gone + 1, fraction + per_us
    end
    if units < gone then
      units, fraction = 0, 0
    else
      units, fraction = units - gone, fraction - gone_fraction
    end
  end
  local remaining = size - (fraction > 0 and units + 1 or units)
  local behind_us = at_us - now_us
  if cost <= remaining then
    local delay_us = limit.is_shaping and drain_time_us(limit, units, fraction) or 0
    units, charged = units + cost, (charged - TWO_53 + cost) % TWO_53
    local reset_after_us = behind_us + drain_time_us(limit, units, fraction)
    local until_us = expires_us(now_us + reset_after_us)
    local after = struct_pack("<c0I7I7I7I7", tag, units, fraction, at_us, charged)
    if delay_us == 0 then
      return struct_pack(ANSWER, ALLOWED, remaining - cost, reset_after_us, charged),
        after, until_us, until_us == kept_until_us
    end
    return struct_pack(
        "<BI7I7I7I7", ALLOWED_LATER, remaining - cost, reset_after_us, charged, delay_us),
      after, until_us, until_us == kept_until_us
  end
  remaining = remaining > 0 and remaining or 0
  local reset_after_us =
    (units > 0 or fraction > 0) and behind_us + drain_time_us(limit, units, fraction) or 0
  local retry_after_us = 0
  if cost <= size then
    -- The level must drain to where the cost fits. It is above that, or the cost would fit now.
    retry_after_us = behind_us + drain_time_us(limit, units - (size - cost), fraction)
  end
  return packed_denial(limit, cost, remaining, reset_after_us, retry_after_us),
    restarted, expires_us(now_us + reset_after_us), false
end

-- ---- everything is read and decided

-- A table with at most eight fields is made in half the time of a larger one.
local function new_limit(kind, size, a, b, tag, format)
  if kind == 1 then
    return {
      check = check_fixed_window, size = size, window_us = a,
      tag = tag, format = format, bytes = #tag + 14,
    }
  elseif kind == 2 then
    return {
      check = check_sliding_window_counter, size = size, window_us = a,
      tag = tag, format = format, bytes = #tag + 21,
    }
  end
  local limit = {
    check = check_bucket, size = size, rate_units = a, per_us = b,
    tag = tag, format = format, bytes = #tag + 28, time_to_full_us = 0,
  }
  limit.time_to_full_us = drain_time_us(limit, size, 0)
  if kind == 6 then
    limit.is_shaping = true
  end
  return limit
end

local limits, position = {}, 1
while position <= #ARGV[1] do
  local kind, size, a, b, tag, format, after = struct_unpack("<BI7I7I7Bc0Bc0", ARGV[1], position)
  limits[#limits + 1], position = new_limit(kind, size, a, b, tag, format), after
end

-- By key. values: the bytes of the state after the earlier checks. expiry, only for a state that has changed: when
-- it may expire, or false if that time has not changed.
local values, expiry = {}, {}
local changed, answers = {}, {}
-- The problems of keys, if any; and the keys that are left to the script that carries over.
local problems, texts, put_off

local function packed_failure(key, problem)
  problems, texts = problems or {}, texts or {}
  problems[key] = problem
  texts[#texts + 1] = problem .. "\n" .. key
  return struct_pack(ANSWER, FAILED, #texts, 0, 0)
end

-- At least as many bytes as any state has.
local NOTHING = "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"

local requests, checks = ARGV[2], #KEYS
position = 1
for index = 1, checks do
  local _, limit_at, cost, after = struct_unpack("<BI2I7", requests, position)
  position = after
  local key, limit = KEYS[index], limits[limit_at]
  local value, is_new = values[key], false
  if not value then
    value = redis_pcall("GET", key)
    if not value then
      value, is_new = limit.tag .. NOTHING, true
    end
  end
  local answer, new_value, expires_at_us, is_as_before = false
  -- If the value is an error, it is a table without elements: its length is 0, which no state has.
  if (#value == limit.bytes or is_new) and not (put_off and put_off[key]) then
    answer, new_value, expires_at_us, is_as_before = limit.check(limit, value, cost)
  end
  if answer == nil then
    answer = packed_failure(key, CORRUPT)
  elseif not answer and value.err then
    answer = packed_failure(key, value.err)
  elseif not answer then
    put_off = put_off or {}
    -- A tag from 128 on is marked (kept_holds.lua): only a script that reads keys with holds reads the state.
    local has_holds = (value:byte(1) or 0) >= 128
    put_off[key], answer = true, struct_pack(ANSWER, PUT_OFF, has_holds and 1 or 0, 0, 0)
  elseif new_value then
    values[key] = new_value
    if expiry[key] == nil then
      changed[#changed + 1] = key
      expiry[key] = false
    end
    if not is_as_before or is_new then
      expiry[key] = expires_at_us
    end
  end
  answers[index] = answer
end

-- ---- now it is written

-- How long a state is kept after it is no longer needed, as in check.lua.
local SPARE_US = 11000000

local ttls, has_failed = {}, false
for index = 1, #changed do
  local key = changed[index]
  local expires_at_us, reply = expiry[key], nil
  if expires_at_us then
    local left_us = expires_at_us - now_us + SPARE_US
    local ttl_s = (left_us - left_us % 1000000) / 1000000
    local ttl = ttls[ttl_s]
    if not ttl then
      ttl = string.format("%d", ttl_s)
      ttls[ttl_s] = ttl
    end
    reply = redis_pcall("SET", key, values[key], "EX", ttl)
  else
    reply = redis_pcall("SET", key, values[key], "KEEPTTL")
  end
  if reply.err then
    packed_failure(key, reply.err)
    has_failed = true
  end
end
if has_failed then
  for index = 1, checks do
    local key = KEYS[index]
    if problems[key] then
      answers[index] = packed_failure(key, problems[key])
    end
  end
end

local packed = struct_pack("<I7", now_us) .. table.concat(answers)
return texts and { packed, unpack(texts) } or packed
