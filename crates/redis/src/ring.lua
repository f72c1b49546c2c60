-- The form of a log: a ring of charges in one string, read and written in place. Comes after
-- states.lua and before holes.lua.
--
-- The string    the tag, which is always 11 bytes long, so that the slots stay where they are when the
--               limit changes; <I7 I7 I3 I3 I3: charged_us, base, head, count, capacity; then the
--               slots, each <I7 I7: at_us and the running sum through it. The charge at index is in
--               slot (head + index) % capacity. A log with holes has a trailer: see holes.lua. With
--               holds the tag is marked (kept_holds.lua), and after slots and trailer come <I3: the
--               number of holds; then the holds, and perhaps bytes that are no longer used.
-- log           the table that sliding_window_log.lua uses. Its charges from index `stored` on are in
--               `at` and `through`, from 1 on, and are written with the log; the charges before that
--               are only in the string.
-- Example       two charges at 1 s and 2 s, of cost 1 each, are 34 + 2 * 14 bytes
--
-- A log of up to 16 charges is read with one command and written with one. A longer one is read in
-- blocks of 16, the few that a search needs, and written where it changed.
local HEADER_BYTES, SLOT_BYTES, BLOCK = 34, 14, 16
local FIRST_READ = HEADER_BYTES + BLOCK * SLOT_BYTES - 1

-- The functions of holes.lua, which make_holes creates for the first log that needs them.
local holes, make_holes
-- For a log with holds: its tag, and its bytes after the slots and the trailer.
local tag_with_holds, bytes_of_holds
local TRAILER_BYTES = 27 + 512 * 10

local ring = {}
local methods = { __index = ring }

local function new_log(key, limit)
  return setmetatable({
    key = key, limit = limit, ttl_s = false, count = 0, base = 0, charged_us = 0,
    head = 0, capacity = 0, stored = 0, at = {}, through = {}, first_block = false,
  }, methods)
end

-- Returns the bytes of sixteen slots.
local function block_bytes(log, block)
  if block == 0 and log.first_block then
    return log.first_block
  end
  local blocks = log.blocks
  if not blocks then
    blocks = {}
    log.blocks = blocks
  end
  local bytes = blocks[block]
  if not bytes then
    local from = HEADER_BYTES + block * BLOCK * SLOT_BYTES
    bytes = redis.call("GETRANGE", log.key, from, from + BLOCK * SLOT_BYTES - 1)
    blocks[block] = bytes
  end
  return bytes
end

-- Returns the time and the running sum in a slot.
local function read_slot(log, slot)
  local offset = slot % BLOCK
  return struct_unpack("<I7I7", block_bytes(log, (slot - offset) / BLOCK), offset * SLOT_BYTES + 1)
end

-- Returns the charge at index. A charge that this script cannot have written makes the log corrupt.
function ring.read(log, index)
  if index >= log.stored then
    local position = index - log.stored + 1
    return log.at[position], log.through[position]
  end
  local at_us, through
  if log.trailer then
    at_us, through = holes.read(log, index)
  else
    at_us, through = read_slot(log, (log.head + index) % log.capacity)
  end
  if at_us > log.charged_us or through >= TWO_53 or through < 0 then
    log.is_corrupt = true
    return 0, 0
  end
  return at_us, through
end

function ring.append(log, at_us, through)
  local position = log.count - log.stored + 1
  log.at[position], log.through[position] = at_us, through
  log.count = log.count + 1
end

function ring.drop(log, count)
  log.count = log.count - count
  if log.trailer then
    holes.drop(log, min(count, log.stored))
  end
  if count <= log.stored then
    log.head = (log.head + count) % max(log.capacity, 1)
    log.stored = log.stored - count
    return
  end
  local kept_at, kept_through = {}, {}
  for position = count - log.stored + 1, #log.at do
    kept_at[#kept_at + 1], kept_through[#kept_through + 1] = log.at[position], log.through[position]
  end
  log.at, log.through, log.stored = kept_at, kept_through, 0
end

-- Reads the charges from `index` on into `at` and `through`, where they can be changed. From then on, the string is
-- taken to have only the charges before `index`; the others are written with the log.
local function take_out(log, index)
  if index >= log.stored then
    return
  end
  if log.trailer then
    return holes.take_out(log, index)
  end
  local at, through = {}, {}
  for position = 1, log.count - index do
    at[position], through[position] = log:read(index + position - 1)
  end
  log.at, log.through, log.stored = at, through, index
end

function ring.lower(log, units)
  take_out(log, 0)
  for position = 1, #log.through do
    log.through[position] = log.through[position] - units
  end
end

function ring.move_back(log, back_us)
  if log.count > BLOCK and make_holes().move_back(log, back_us) then
    return
  end
  take_out(log, 0)
  for position = 1, #log.at do
    log.at[position] = max(log.at[position] - back_us, 0)
  end
end

-- Returns the bytes of `count` adjacent slots of the string, from `slot` on.
local function slot_bytes(log, slot, count)
  if count == 0 then
    return ""
  end
  local from = HEADER_BYTES + slot * SLOT_BYTES
  if slot + count <= BLOCK and log.first_block then
    return log.first_block:sub(slot * SLOT_BYTES + 1, (slot + count) * SLOT_BYTES)
  end
  return redis.call("GETRANGE", log.key, from, from + count * SLOT_BYTES - 1)
end

-- Returns the bytes of `count` slots from head on, in two parts: before and after the wrap.
local function bytes_from_head(log, count)
  local before_the_end = min(count, log.capacity - log.head)
  return slot_bytes(log, log.head, before_the_end), slot_bytes(log, 0, count - before_the_end)
end

-- Returns the bytes of charges that are not in the string yet, from position on.
local function new_bytes(log, position, count)
  local back_us, units = 0, 0
  if log.trailer then
    back_us, units = holes.added_to_new(log)
  end
  local bytes = {}
  for index = 1, count do
    local at = position + index - 1
    bytes[index] = struct_pack("<I7I7", log.at[at] + back_us, log.through[at] + units)
  end
  return table.concat(bytes)
end

local function header(log)
  return (log.holds and tag_with_holds(log) or log.limit.tag)
    .. struct_pack("<I7I7I3I3I3", log.charged_us, log.base, log.head, log.count, log.capacity)
end

-- Writes the whole string again, without a trailer.
local function rewrite(log, ttl)
  local first, second = bytes_from_head(log, log.stored)
  local slots = first .. second .. new_bytes(log, 1, #log.at)
  log.head, log.capacity = 0, log.count
  if log.holds then
    slots = slots .. bytes_of_holds(log)
  end
  return redis_pcall("SET", log.key, header(log) .. slots, "EX", ttl).err
end

-- Returns nil, or the server's error.
local function set_range(log, at, bytes)
  local reply = redis_pcall("SETRANGE", log.key, at, bytes)
  return type(reply) == "table" and reply.err or nil
end

-- Returns nil, or the server's error.
local function expire(log, ttl)
  local reply = redis_pcall("EXPIRE", log.key, ttl)
  return type(reply) == "table" and reply.err or nil
end

-- Writes the bytes of slots from `slot` on, and continues at slot 0 after the last slot.
local function write_slots(log, slot, bytes)
  local at_the_end = (log.capacity - slot) * SLOT_BYTES
  local problem
  if bytes ~= "" then
    problem = set_range(log, HEADER_BYTES + slot * SLOT_BYTES, bytes:sub(1, at_the_end))
  end
  if not problem and #bytes > at_the_end then
    problem = set_range(log, HEADER_BYTES, bytes:sub(at_the_end + 1))
  end
  return problem
end

-- The capacity that a log may grow to. A log with holes needs more slots than its limit has units.
local function max_capacity(log)
  return max(log.limit.size, log.count) + (log.trailer and 1024 or 0)
end

-- Makes room for `needed` slots. The string uses `used` slots, from head on. If these continue at slot 0,
-- they have two parts, and the shorter part moves. That is for short logs, and for long ones that grew too
-- fast for holes.lua to move charges in small steps. Capacity grows by only an eighth, because the server
-- itself allocates up to twice the bytes that a growing string needs.
local function grow(log, needed, used)
  local capacity = log.capacity
  local spare = max(BLOCK, (needed - needed % 8) / 8)
  log.capacity = max(needed, min(needed + spare, max_capacity(log)))
  local more = log.capacity - capacity
  local at_the_end, wrapped = capacity - log.head, log.head + used - capacity
  local moved, to
  if wrapped > at_the_end then
    moved, to = slot_bytes(log, log.head, at_the_end), log.head + more
    log.head = to
  elseif wrapped > 0 then
    moved, to = slot_bytes(log, 0, wrapped), capacity
  end
  local problem = set_range(log, HEADER_BYTES + log.capacity * SLOT_BYTES - 1, "\0")
  if moved and not problem then
    problem = write_slots(log, to, moved)
  end
  log.blocks, log.first_block = nil, false
  return problem
end

-- Writes the new charges and the header. If a server refuses writes, because it is out of memory or a
-- replica, it refuses the first command, so nothing has changed. EXPIRE must not be first: a server that is
-- out of memory would accept it, and refuse the other commands.
local function write_in_place(log, ttl)
  local problem
  if log.count > log.capacity then
    problem = grow(log, log.count, log.stored)
  end
  if not problem then
    local slots = new_bytes(log, 1, #log.at)
    problem = write_slots(log, (log.head + log.stored) % log.capacity, slots)
  end
  return problem or set_range(log, 0, header(log)) or expire(log, ttl)
end

sliding_window_log.fresh_at, sliding_window_log.first_read = new_log, FIRST_READ

function sliding_window_log.expires_us(_, over_us)
  return over_us
end

-- Returns a log from its header, and the bytes that its header and its slots take; nil if it is not valid.
local function from_header(value, at, key, limit)
  if #value < HEADER_BYTES then
    return nil
  end
  local log = new_log(key, limit)
  log.charged_us, log.base, log.head, log.count, log.capacity =
    struct_unpack("<I7I7I3I3I3", value, at)
  log.stored, log.first_block = log.count, value:sub(HEADER_BYTES + 1)
  local bytes = HEADER_BYTES + log.capacity * SLOT_BYTES
  local is_whole = log.charged_us < TWO_53 and log.base < TWO_53
    and log.count <= log.capacity and (log.head < log.capacity or log.capacity == 0)
  return is_whole and log or nil, bytes
end

function sliding_window_log.unpacked(value, at, key, limit)
  local log, bytes = from_header(value, at, key, limit)
  if not log then
    return nil
  end
  local length = #value > FIRST_READ and redis.call("STRLEN", key) or #value
  if length == bytes then
    return log
  elseif length == bytes + TRAILER_BYTES and log.capacity >= BLOCK then
    return make_holes().unpacked(log)
  end
end

-- Whether one more charge makes the string of a long log grow.
function ring.is_full(log)
  local gap = log.trailer and log.trailer.gap or 0
  return log.capacity > 4096 and log.count + gap >= log.capacity and log.capacity < max_capacity(log)
end

-- Whether a log is written again as a whole: a log of at most 16 charges, a new log (a reset may have left
-- an old string), and a log of at most 1,024 charges that uses less than a quarter of its slots.
local function is_rewritten(log)
  return log.count <= BLOCK or log.capacity == 0
    or (log.capacity > 4 * log.count and log.count <= 1024)
end

-- Whether a long log is nearly full, and its charges continue at slot 0 after the last slot. Such a log
-- grows in small steps, because moving half of its charges at once takes up to 0.9 ms.
local function is_to_grow(log, used)
  return log.capacity > 4096 and log.capacity < max_capacity(log) and log.head + used > log.capacity
    and log.capacity - used - #log.at < log.capacity / 8
end

function sliding_window_log.write(log, ttl)
  if log.trailer then
    return holes.write(log, ttl)
  elseif is_rewritten(log) then
    return rewrite(log, ttl)
  elseif is_to_grow(log, log.stored) then
    return make_holes().write(log, ttl)
  end
  return write_in_place(log, ttl)
end

-- Returns a copy that can be changed without changing this log.
function ring.copy(log)
  local copy = new_log(log.key, log.limit)
  for name, value in pairs(log) do
    copy[name] = value
  end
  copy.at, copy.through = {}, {}
  for position = 1, #log.at do
    copy.at[position], copy.through[position] = log.at[position], log.through[position]
  end
  copy.trailer = log.trailer and holes.copy(log.trailer)
  return copy
end

-- ---- beyond a check

-- A charge with at most this many charges after it is removed by writing the later ones again.
local NEAR = 64

function ring.remove(log, index, cost)
  if index == 0 then
    local _, through = log:read(0)
    log.base = through
    return log:drop(1)
  elseif index < log.stored and log.count - index > NEAR then
    return make_holes().remove(log, index, cost)
  end
  take_out(log, index)
  local removed = index - log.stored + 1
  table.remove(log.at, removed)
  table.remove(log.through, removed)
  for position = removed, #log.through do
    log.through[position] = log.through[position] - cost
  end
  log.count = log.count - 1
  if log.trailer then
    holes.trim(log)
  end
end

-- Returns the part of a state after its tag. The slots are sent separately, unchanged.
function sliding_window_log.packed(log)
  return struct_pack("<I7I7", log.charged_us, log.base) .. make_holes().packed(log)
end

function sliding_window_log.slots(log)
  local gap = log.trailer and log.trailer.gap or 0
  local first, second = bytes_from_head(log, log.stored > 0 and log.stored + gap or 0)
  return { first, second, new_bytes(log, 1, #log.at) }
end

-- ---- holds

-- A log of at most this many charges is written again as a whole when its last hold has ended, so that its tag is
-- not marked any more. A longer one keeps its mark, because its string cannot be made shorter.
local SHORT = 1024
-- The most units of a log, and so the most units that a key can have held under one.
local MAX_HELD_UNITS = 65536

function tag_with_holds(log)
  return marked_tag(log.limit, log.trailer ~= nil)
end

-- Returns where the holds begin in the string.
local function holds_at(log)
  return HEADER_BYTES + log.capacity * SLOT_BYTES + (log.trailer and TRAILER_BYTES or 0)
end

function bytes_of_holds(log)
  log.holds_at, log.holds.is_changed = holds_at(log), false
  return struct_pack("<I3", log.holds.count) .. hold_list.packed(log.holds)
end

function sliding_window_log.unpacked_held(value, key, limit, has_trailer)
  local log, from = from_header(value, #limit.tag + 1, key, limit)
  if not log or (has_trailer and log.capacity < BLOCK) then
    return nil
  end
  from = from + (has_trailer and TRAILER_BYTES or 0)
  local bytes
  if #value > FIRST_READ then
    bytes = redis.call("GETRANGE", key, from, from + 3 + 1024 * 29)
  else
    bytes = value:sub(from + 1)
  end
  local count = #bytes >= 3 and struct_unpack("<I3", bytes) or nil
  if not count or #bytes < 3 + count * 29 then
    return nil
  elseif has_trailer and not make_holes().unpacked(log) then
    return nil
  end
  log.holds = hold_list.unpacked(bytes, 4, count, log.charged_us, 0, MAX_HELD_UNITS)
  log.holds_at = from
  return log.holds and log
end

local write_log = sliding_window_log.write

function sliding_window_log.write(log, ttl)
  local holds = log.holds
  if not holds then
    return write_log(log, ttl)
  elseif holds.count == 0 and log.count <= SHORT then
    take_out(log, 0)
    log.holds, log.trailer, log.has_holes = nil, nil, false
    return rewrite(log, ttl)
  end
  local problem = write_log(log, ttl)
  if not problem and (holds.is_changed or log.holds_at ~= holds_at(log)) then
    local bytes = bytes_of_holds(log)
    problem = set_range(log, log.holds_at, bytes)
  end
  return problem
end

-- ---- carrying over

first_read = FIRST_READ

function sliding_window_log.fresh()
  return new_log()
end
