-- The form of holds on the server: they are in the string of their key, after its state. Comes after
-- states.lua; only batches with holds load it. A log's place for holds is in ring.lua.
--
-- The string    of a key with holds begins with a marked tag: its first byte is higher by 128. So the other
--               scripts take it for a tag of another limit, and put the request off. After the state come
--               the holds. A bucket that was settled far beyond a hold has a marked tag too, without
--               holds, until its level is at most its capacity again. A long log keeps the mark (ring.lua).
-- holds         the table that the twin uses, with its methods. In the string they are in columns: all ids,
--               8 bytes each, the most significant first; then all units that settlements in part have
--               charged; all units held; and all expiries; <I7 each. The earliest expiry comes first.
-- This file adds to each state: holds, nil if its tag is not marked. And it replaces `read` and `write`.
-- Example       a fixed window with two holds is its tag, its 14 bytes, and 2 * 29 bytes
local hold_list = {}
-- Returns the tag of a key with holds under this limit.
local marked_tag
do
  local MARK, HOLD_BYTES, MAX_HOLDS = 128, 29, 1024
  -- Added to the mark on the tag of a log that has a trailer.
  local TRAILER_MARK = 64
  local MAX_TAG_BYTES = 25

  local kept = {}
  local methods = { __index = kept }

  function hold_list.new()
    return setmetatable({
      count = 0, units = {}, expires = {}, ids = "", uses = "", is_changed = false,
    }, methods)
  end

  local function number_format(count)
    return "<" .. string.rep("I7", count)
  end

  local function numbers(value, at, count)
    local list = { struct_unpack(number_format(count), value, at) }
    list[count + 1] = nil
    return list
  end

  local function packed_numbers(list, count)
    return struct_pack(number_format(count), unpack(list, 1, count))
  end

  -- Returns the `count` holds whose bytes begin at `at`. Nil if no key can have them: expiries must be in order and
  -- not before floor_us, the floor of the key's state, and the units held and the `spent` units together at most
  -- `most`.
  function hold_list.unpacked(value, at, count, floor_us, spent, most)
    if count > MAX_HOLDS or count % 1 ~= 0 then
      return nil
    end
    local uses_at = at + 8 * count
    local units_at = uses_at + 7 * count
    local holds = setmetatable({
      count = count, ids = value:sub(at, uses_at - 1), uses = value:sub(uses_at, units_at - 1),
      units = numbers(value, units_at, count), expires = numbers(value, units_at + 7 * count, count),
      is_changed = false,
    }, methods)
    local units, expires, before_us, taken = holds.units, holds.expires, floor_us, spent
    for position = 1, count do
      local expires_us = expires[position]
      if expires_us < before_us then
        return nil
      end
      before_us, taken = expires_us, taken + units[position]
    end
    return before_us < TWO_53 and taken <= most and holds or nil
  end

  function hold_list.packed(holds)
    local count = holds.count
    return holds.ids .. holds.uses
      .. packed_numbers(holds.units, count) .. packed_numbers(holds.expires, count)
  end

  -- Returns a list without the first `count` elements.
  local function without_first(list, count, left)
    local rest = {}
    for position = 1, left do
      rest[position] = list[count + position]
    end
    return rest
  end

  function hold_list.copy(holds)
    local copy = hold_list.new()
    copy.count, copy.ids, copy.uses, copy.is_changed = holds.count, holds.ids, holds.uses, true
    copy.units = without_first(holds.units, 0, holds.count)
    copy.expires = without_first(holds.expires, 0, holds.count)
    return copy
  end

  function kept.find(holds, id)
    local at = 1
    while true do
      local from = string.find(holds.ids, id, at, true)
      if not from then
        return nil
      elseif from % 8 == 1 then
        return (from + 7) / 8
      end
      at = from + 1
    end
  end

  function kept.id(holds, position)
    return holds.ids:sub(8 * position - 7, 8 * position)
  end

  function kept.used(holds, position)
    return (struct_unpack("<I7", holds.uses, 7 * position - 6))
  end

  function kept.insert(holds, position, id, units, expires_us, used)
    holds.ids = holds.ids:sub(1, 8 * position - 8) .. id .. holds.ids:sub(8 * position - 7)
    holds.uses = holds.uses:sub(1, 7 * position - 7) .. struct_pack("<I7", used)
      .. holds.uses:sub(7 * position - 6)
    table.insert(holds.units, position, units)
    table.insert(holds.expires, position, expires_us)
    holds.count, holds.is_changed = holds.count + 1, true
  end

  function kept.set(holds, position, units, used)
    holds.units[position] = units
    holds.uses = holds.uses:sub(1, 7 * position - 7) .. struct_pack("<I7", used)
      .. holds.uses:sub(7 * position + 1)
    holds.is_changed = true
  end

  function kept.remove(holds, position)
    holds.ids = holds.ids:sub(1, 8 * position - 8) .. holds.ids:sub(8 * position + 1)
    holds.uses = holds.uses:sub(1, 7 * position - 7) .. holds.uses:sub(7 * position + 1)
    table.remove(holds.units, position)
    table.remove(holds.expires, position)
    holds.count, holds.is_changed = holds.count - 1, true
  end

  function kept.drop(holds, count)
    local left = holds.count - count
    holds.ids, holds.uses = holds.ids:sub(8 * count + 1), holds.uses:sub(7 * count + 1)
    holds.units = without_first(holds.units, count, left)
    holds.expires = without_first(holds.expires, count, left)
    holds.count, holds.is_changed = left, true
  end

  function kept.move_back(holds, back_us)
    for position = 1, holds.count do
      holds.expires[position] = max(holds.expires[position] - back_us, 0)
    end
    holds.is_changed = true
  end

  function marked_tag(limit, has_trailer)
    local mark = has_trailer and MARK + TRAILER_MARK or MARK
    return string.char(limit.tag:byte(1) + mark) .. limit.tag:sub(2)
  end

  -- Returns the state of a bucket whose level may be above its capacity.
  local function unpacked_bucket(value, at, key, limit)
    local units, fraction, as_of_us, charged = struct_unpack("<I7I7I7I7", value, at)
    if units < TWO_53 and fraction < limit.per_us and as_of_us < TWO_53 and charged < TWO_53 then
      return {
        key = key, limit = limit, ttl_s = false,
        units = units, fraction = fraction, as_of_us = as_of_us, charged = charged,
      }
    end
  end

  -- Decodes a state with a marked tag, for all limits but the log. Nil if no state has this value.
  local function unpacked(value, key, limit)
    local decide, at = limit.decide, #limit.tag + 1
    local holds_at = at + #decide.nothing
    if limit.is_shaping or #value + 1 < holds_at then
      return nil
    end
    local state
    if limit.time_to_full_us then
      state = unpacked_bucket(value, at, key, limit)
    else
      state = decide.unpacked(value:sub(1, holds_at - 1), at, key, limit)
    end
    if not state then
      return nil
    end
    local spent = state.units or state.spent or state.current or 0
    state.holds = hold_list.unpacked(value, holds_at, (#value + 1 - holds_at) / HOLD_BYTES,
      decide.floor_us(state), spent, held.most_taken(limit))
    return state.holds and state
  end

  -- Returns the limit whose tag a state begins with; false if this script cannot read it, nil if it has no
  -- valid tag.
  local function limit_under(value, limit)
    if value:sub(1, #limit.tag) == limit.tag then
      return limit
    elseif not limit_of_tag then
      return false
    end
    return limit_of_tag(value)
  end

  function read(key, limit)
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
    local mark, head = value:byte(1) or 0, value
    if mark >= MARK then
      head = string.char(mark % TRAILER_MARK) .. value:sub(2, MAX_TAG_BYTES)
    end
    local under = limit_under(head, limit)
    local state
    if under == false then
      return { key = key, limit = false, ttl_s = false }
    elseif under and mark < MARK then
      state = under.decide.unpacked(value, #under.tag + 1, key, under)
    elseif under and under.decide.unpacked_held then
      state = under.decide.unpacked_held(value, key, under, mark >= MARK + TRAILER_MARK)
    elseif under and mark < MARK + TRAILER_MARK then
      if most and #value > most then
        value = redis.call("GET", key)
      end
      state = unpacked(value, key, under)
    end
    return state or problem_at(key, limit, CORRUPT)
  end

  -- A concurrency limit has no state but the time of the last operation.
  local new_limit_without = new_limit

  function new_limit(kind, size, a, b)
    if kind == 7 then
      return concurrency.new(size)
    end
    return new_limit_without(kind, size, a, b)
  end

  concurrency.nothing = "\0\0\0\0\0\0\0"

  function concurrency.unpacked(value, at, key, limit)
    local at_us = #value == at + 6 and struct_unpack("<I7", value, at) or TWO_53
    if at_us < TWO_53 then
      return { key = key, limit = limit, ttl_s = false, at_us = at_us }
    end
  end

  function concurrency.packed(clock)
    return struct_pack("<I7", clock.at_us)
  end

  function concurrency.expires_us(_, over_us)
    return over_us
  end

  -- Whether a bucket is above its capacity.
  local function is_in_debt(state)
    local size = state.limit.size
    return state.units and (state.units > size or (state.units == size and state.fraction > 0))
  end

  local write_without = write

  function write(state, ttl)
    local holds, decide = state.holds, state.limit.decide
    if not holds or decide.write or (holds.count == 0 and not is_in_debt(state)) then
      return write_without(state, ttl)
    end
    local value = marked_tag(state.limit) .. decide.packed(state) .. hold_list.packed(holds)
    return redis_pcall("SET", state.key, value, "EX", ttl).err
  end
end
