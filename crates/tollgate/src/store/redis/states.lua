-- Where states are on the server: in strings of whole numbers, 7 bytes each, lowest byte first. That
-- is small, and nothing is rounded. Comes after the twins; those of algorithms that are not in use
-- are nil. The log's are in ring.lua.
--
-- state         what a twin works on, and beside that: key, limit, ttl_s once it is to be written,
--               and problem if it cannot be read or written
-- Each algorithm's table is given
--   packed(state)                its bytes
--   unpacked(value, key, limit)  the state that has them, nil if none has
--   nothing, bytes               those of a fresh state, and how many
--   expires_us(state, over_us)   when it may expire, if nothing is spent any more at over_us: not
--                                before, and as seldom as can be at another time than before it
--                                was charged, because plain.lua saves itself the work then
-- Example       a fixed window that began at 60 s, with 5 spent, is 14 bytes, in hexadecimal
--               00879303000000 05000000000000
local CORRUPT = "CORRUPT"

-- Buckets expire at whole steps of this, counted from the epoch.
local EXPIRY_STEP_US = 8000000

local struct_pack, struct_unpack, redis_pcall = struct.pack, struct.unpack, redis.pcall

local function problem_at(key, limit, problem)
  return { key = key, limit = limit, problem = problem }
end

-- The state of a key that has spent nothing.
local function fresh_at(key, limit)
  local decide = limit.decide
  return decide.fresh_at and decide.fresh_at(key, limit)
    or decide.unpacked(decide.nothing, key, limit)
end

-- The state under a key, and whether there is none yet.
local function read(key, limit)
  local decide = limit.decide
  if decide.read then
    return decide.read(key, limit)
  end
  local value = redis_pcall("GET", key)
  if not value then
    return decide.unpacked(decide.nothing, key, limit), true
  end
  -- An error is a table without elements.
  local state = #value == decide.bytes and decide.unpacked(value, key, limit)
  return state or problem_at(key, limit, value.err or CORRUPT)
end

-- Nil, or the server's error.
local function write(state, ttl)
  local decide = state.limit.decide
  if decide.write then
    return decide.write(state, ttl)
  end
  return redis_pcall("SET", state.key, decide.packed(state), "EX", ttl).err
end

if fixed_window then
  fixed_window.bytes, fixed_window.nothing =
    14, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0"

  function fixed_window.unpacked(value, key, limit)
    local start_us, spent = struct_unpack("<I7I7", value)
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
  sliding_window_counter.bytes, sliding_window_counter.nothing =
    21, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"

  function sliding_window_counter.unpacked(value, key, limit)
    local start_us, current, previous = struct_unpack("<I7I7I7", value)
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
  bucket.bytes, bucket.nothing =
    28, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"

  function bucket.unpacked(value, key, limit)
    local units, fraction, as_of_us, charged = struct_unpack("<I7I7I7I7", value)
    -- The capacity may have been lowered since.
    if units >= limit.size then
      units, fraction = limit.size, 0
    end
    if fraction < limit.per_us and as_of_us < TWO_53 and charged < TWO_53 then
      return {
        key = key, limit = limit, ttl_s = false,
        units = units, fraction = fraction, as_of_us = as_of_us, charged = charged,
      }
    end
  end

  function bucket.packed(fill)
    return struct_pack("<I7I7I7I7", fill.units, fill.fraction, fill.as_of_us, fill.charged)
  end

  -- From what is kept, as plain.lua finds it again: a refund at a time before the last charge may
  -- leave nothing spent, and so be over before that.
  function bucket.expires_us(fill)
    local over_us = fill.as_of_us + drain_time_us(fill.limit, fill.units, fill.fraction)
    return over_us - over_us % EXPIRY_STEP_US + EXPIRY_STEP_US
  end
end
