-- States in strings of whole numbers, 7 bytes each, lowest byte first: small, and nothing is
-- rounded. Comes after the twins; those of algorithms that are not in use are nil. The log's home is
-- in ring.lua.
--
-- home        keeps the states of one algorithm
--   fresh(key, limit)           the state of a key that has spent nothing
--   read(key, limit)            the state; if there is none, a fresh one, nil, true; if it cannot
--                               be read, nil and what is wrong
--   write(key, state, ttl_ms)   nil, or the server's error
--   packed(state)               its bytes
-- Example     a fixed window that began at 60 s, with 5 spent, is 14 bytes, in hexadecimal
--             00879303000000 05000000000000

local CORRUPT = "CORRUPT"

local struct_pack, struct_unpack, redis_pcall = struct.pack, struct.unpack, redis.pcall

-- The home of states that `unpacked` makes of a string of `length` bytes, and `packed` back again.
local function string_home(length, fresh, unpacked, packed)
  local home = { fresh = fresh, packed = packed }

  function home.read(key, limit)
    local value = redis_pcall("GET", key)
    if not value then
      return fresh(), nil, true
    elseif value.err then
      return nil, value.err
    elseif #value ~= length then
      return nil, CORRUPT
    end
    return unpacked(value, limit), CORRUPT
  end

  function home.write(key, state, ttl_ms)
    return redis_pcall("SET", key, packed(state), "PX", ttl_ms).err
  end

  return home
end

if fixed_window then
  fixed_window.home = string_home(14, fixed_window.fresh, function(value)
    local start_us, spent = struct_unpack("<I7I7", value)
    if start_us < TWO_53 and spent < TWO_53 then
      return { start_us = start_us, spent = spent }
    end
  end, function(window)
    return struct_pack("<I7I7", window.start_us, window.spent)
  end)
end

if sliding_window_counter then
  sliding_window_counter.home = string_home(21, sliding_window_counter.fresh, function(value)
    local start_us, current, previous = struct_unpack("<I7I7I7", value)
    if start_us < TWO_53 and current < TWO_53 and previous < TWO_53 then
      return { start_us = start_us, current = current, previous = previous }
    end
  end, function(windows)
    return struct_pack("<I7I7I7", windows.start_us, windows.current, windows.previous)
  end)
end

if bucket then
  bucket.home = string_home(28, bucket.fresh, function(value, limit)
    local units, fraction, as_of_us, charged = struct_unpack("<I7I7I7I7", value)
    -- The capacity may have been lowered since.
    if units >= limit.size then
      units, fraction = min(units, limit.size), 0
    end
    if fraction < limit.per_us and as_of_us < TWO_53 and charged < TWO_53 then
      return { units = units, fraction = fraction, as_of_us = as_of_us, charged = charged }
    end
  end, function(fill)
    return struct_pack("<I7I7I7I7", fill.units, fill.fraction, fill.as_of_us, fill.charged)
  end)
end
