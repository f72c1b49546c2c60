-- The form of states on the server: a string of a tag, which names the limit that the state was reached
-- under, and whole numbers, 7 bytes each, lowest byte first. That is small, and nothing is rounded.
-- Comes after the twins; the tables of unused algorithms are nil. The log's functions are in ring.lua.
--
-- limit         the fields that a twin uses, and its tag
-- state         the fields that a twin uses, and:
--                 key
--                 limit    the limit that the state was reached under; false if that is another limit
--                          than the request's and this script cannot read its states
--                 ttl_s    false until the state is to be written or deleted
--                 problem  why it cannot be read or written, if so
-- This file adds to each algorithm's table:
--   packed(state)                its bytes, after the tag
--   unpacked(value, at, key, limit)
--                                the state whose bytes begin at `at`, nil if no state has them
--   nothing                      the bytes of a fresh state
--   expires_us(state, over_us)   when the state may expire, if nothing is spent any more at over_us: not
--                                before that. Where possible, a charge does not change this time, because
--                                plain.lua then need not set the expiry again.
-- Example       a fixed window of 200 a minute that began at 60 s, with 5 spent, is 21 bytes, in
--               hexadecimal 01 C801 808ECE1C 00879303000000 05000000000000
local CORRUPT = "CORRUPT"

-- A bucket expires at a multiple of this time since the epoch.
local EXPIRY_STEP_US = 8000000

local struct_pack, struct_unpack, redis_pcall = struct.pack, struct.unpack, redis.pcall

local function problem_at(key, limit, problem)
  return { key = key, limit = limit, problem = problem }
end

local function new_limit(kind, size, a, b)
  if kind == 1 then
    return fixed_window.new(size, a)
  elseif kind == 2 then
    return sliding_window_counter.new(size, a)
  elseif kind == 3 then
    return sliding_window_log.new(size, a)
  elseif kind == 4 then
    return token_bucket.new(size, a, b)
  elseif kind == 5 then
    return leaky_bucket.policing(size, a, b)
  end
  return leaky_bucket.shaping(size, a, b)
end

-- The state of a key that has spent nothing.
local function fresh_at(key, limit)
  local decide = limit.decide
  return decide.fresh_at and decide.fresh_at(key, limit)
    or decide.unpacked(decide.nothing, 1, key, limit)
end

-- limit_of_tag returns the limit whose tag a state begins with, nil if it has no valid tag. first_read is the
-- index of the last byte that is read at first, because the state may be a log. Both are only in the script
-- that carries over, because it reads states of any limit.
local limit_of_tag, first_read

-- Returns the state of a key, and whether it is new.
local function read(key, limit)
  local decide, value = limit.decide, nil
  local most = first_read or decide.first_read
  if most then
    value = redis_pcall("GETRANGE", key, 0, most)
  else
    value = redis_pcall("GET", key)
  end
  if not value or (most and value == "") then
    return fresh_at(key, limit), true
  elseif value.err then
    return problem_at(key, limit, value.err)
  end
  local under = limit
  if value:sub(1, #limit.tag) ~= limit.tag then
    if not limit_of_tag then
      return { key = key, limit = false, ttl_s = false }
    end
    under = limit_of_tag(value)
  end
  return under and under.decide.unpacked(value, #under.tag + 1, key, under)
    or problem_at(key, limit, CORRUPT)
end

-- Returns nil, or the server's error.
local function write(state, ttl)
  local decide = state.limit.decide
  if decide.write then
    return decide.write(state, ttl)
  end
  return redis_pcall("SET", state.key, state.limit.tag .. decide.packed(state), "EX", ttl).err
end

if fixed_window then
  fixed_window.nothing = "\0\0\0\0\0\0\0\0\0\0\0\0\0\0"

  function fixed_window.unpacked(value, at, key, limit)
    if #value ~= at + 13 then
      return nil
    end
    local start_us, spent = struct_unpack("<I7I7", value, at)
    if start_us < TWO_53 and spent < TWO_53 then
      return { key = key, limit = limit, ttl_s = false, start_us = start_us, spent = spent }
    end
  end

  function fixed_window.packed(window)
    return struct_pack("<I7I7", window.start_us, window.spent)
  end

  function fixed_window.expires_us(window)
    return window.start_us + window.limit.window_us
  end
end

if sliding_window_counter then
  sliding_window_counter.nothing = "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"

  function sliding_window_counter.unpacked(value, at, key, limit)
    if #value ~= at + 20 then
      return nil
    end
    local start_us, current, previous = struct_unpack("<I7I7I7", value, at)
    if start_us < TWO_53 and current < TWO_53 and previous < TWO_53 then
      return {
        key = key, limit = limit, ttl_s = false,
        start_us = start_us, current = current, previous = previous,
      }
    end
  end

  function sliding_window_counter.packed(windows)
    return struct_pack("<I7I7I7", windows.start_us, windows.current, windows.previous)
  end

  function sliding_window_counter.expires_us(windows)
    return windows.start_us + 2 * windows.limit.window_us
  end
end

if bucket then
  bucket.nothing =
    "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"

  function bucket.unpacked(value, at, key, limit)
    if #value ~= at + 27 then
      return nil
    end
    local units, fraction, as_of_us, charged = struct_unpack("<I7I7I7I7", value, at)
    local fits = units < limit.size or (units == limit.size and fraction == 0)
    if fits and fraction < limit.per_us and as_of_us < TWO_53 and charged < TWO_53 then
      return {
        key = key, limit = limit, ttl_s = false,
        units = units, fraction = fraction, as_of_us = as_of_us, charged = charged,
      }
    end
  end

  function bucket.packed(fill)
    return struct_pack("<I7I7I7I7", fill.units, fill.fraction, fill.as_of_us, fill.charged)
  end

  -- Computed from the state alone and not from over_us, so that plain.lua, which has only the state, computes
  -- the same time. The two can differ: a refund at a time before the last charge may leave nothing spent, and
  -- over_us is then before that charge.
  function bucket.expires_us(fill)
    local over_us = fill.as_of_us + drain_time_us(fill.limit, fill.units, fill.fraction)
    return over_us - over_us % EXPIRY_STEP_US + EXPIRY_STEP_US
  end
end

-- ---- carrying over

-- In a block, because Lua allows 200 local variables outside of one.
do
local MAX_WINDOW_US = 366 * 86400 * 1000000
local MAX_LOG_UNITS, LOG_TAG_BYTES, MAX_CONCURRENCY = 65536, 11, 1024

-- Returns a number of a tag, and where it ends: seven bits a byte, the lowest first, the last below 128.
-- Nil if the bytes are not a number.
local function tag_number(value, at)
  local number, place = 0, 1
  for position = at, at + 7 do
    local byte = value:byte(position)
    if not byte then
      return nil
    elseif byte < 128 then
      number = number + byte * place
      return number < TWO_53 and number > 0 and number or nil, position + 1
    end
    number, place = number + (byte - 128) * place, place * 128
  end
end

-- Returns whether the numbers may be a valid limit. A bucket may take 100 years to fill; 2^52 us are 142 years.
local function is_limit(kind, size, a, b)
  if kind == 7 then
    return size <= MAX_CONCURRENCY and a <= MAX_WINDOW_US
  elseif kind >= 4 then
    return size * b / a < 2 ^ 52
  end
  return a <= MAX_WINDOW_US and (kind ~= 3 or size <= MAX_LOG_UNITS)
end

function limit_of_tag(value)
  local kind, b = value:byte(1), 1
  if not kind or kind < 1 or kind > 7 then
    return nil
  end
  local size, at = tag_number(value, 2)
  local a
  if size then
    a, at = tag_number(value, at)
  end
  if a and kind >= 4 and kind <= 6 then
    b, at = tag_number(value, at)
  end
  if not (a and b and is_limit(kind, size, a, b)) then
    return nil
  end
  local limit = new_limit(kind, size, a, b)
  limit.tag = value:sub(1, kind == 3 and LOG_TAG_BYTES or at - 1)
  return limit
end
end
