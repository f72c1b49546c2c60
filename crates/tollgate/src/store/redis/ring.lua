-- The log's home: a ring of charges in one string, read and written in place. Comes after states.lua.
--
-- The string    the tag, which is always 11 bytes long, so that the slots stay where they are when the
--               limit changes; <I7 I7 I3 I3 I3: charged_us, base, head, count, capacity; then the
--               slots, each <I7 I7: at_us and the running sum through it. The charge at index is in
--               slot (head + index) % capacity.
-- log           what sliding_window_log.lua works on. Its charges from index `stored` on are in
--               `at` and `through`, from 1 on, and are written when the log is; those before are
--               still where the string has them.
-- Example       two charges at 1 s and 2 s, of cost 1 each, are 34 + 2 * 14 bytes
--
-- A log of up to 16 charges is read with one command and written with one. A longer one is read in
-- blocks of 16, the few that a search needs, and written where it changed.
local HEADER_BYTES, SLOT_BYTES, BLOCK = 34, 14, 16
local FIRST_READ = HEADER_BYTES + BLOCK * SLOT_BYTES - 1

local ring = {}
local methods = { __index = ring }

local function new_log(key, limit)
  return setmetatable({
    key = key, limit = limit, ttl_s = false, count = 0, base = 0, charged_us = 0,
    head = 0, capacity = 0, stored = 0, at = {}, through = {}, first_block = false,
  }, methods)
end

-- Sixteen slots.
local function block_bytes(log, block)
  if block == 0 then
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

-- The charge at index. One that cannot have been written here makes the log corrupt.
function ring.read(log, index)
  if index >= log.stored then
    local position = index - log.stored + 1
    return log.at[position], log.through[position]
  end
  local slot = (log.head + index) % log.capacity
  local offset = slot % BLOCK
  local bytes = block_bytes(log, (slot - offset) / BLOCK)
  local at_us, through = struct_unpack("<I7I7", bytes, offset * SLOT_BYTES + 1)
  if at_us > log.charged_us or through >= TWO_53 then
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

-- Takes the charges from index on out of the string, to change them.
local function take_out(log, index)
  if index >= log.stored then
    return
  end
  local at, through = {}, {}
  for position = 1, log.count - index do
    at[position], through[position] = log:read(index + position - 1)
  end
  log.at, log.through, log.stored = at, through, index
end

function ring.lower(log, index, back_us, units)
  take_out(log, index)
  for position = index - log.stored + 1, #log.at do
    log.at[position] = max(log.at[position] - back_us, 0)
    log.through[position] = log.through[position] - units
  end
end

-- The bytes of `count` stored slots from `slot` on, which are next to each other.
local function slot_bytes(log, slot, count)
  if count == 0 then
    return ""
  end
  local from = HEADER_BYTES + slot * SLOT_BYTES
  if slot + count <= BLOCK then
    return log.first_block:sub(slot * SLOT_BYTES + 1, (slot + count) * SLOT_BYTES)
  end
  return redis.call("GETRANGE", log.key, from, from + count * SLOT_BYTES - 1)
end

-- The bytes of all stored charges, the oldest first.
local function stored_bytes(log)
  local before_the_end = min(log.stored, log.capacity - log.head)
  return slot_bytes(log, log.head, before_the_end) .. slot_bytes(log, 0, log.stored - before_the_end)
end

-- The bytes of the charges that are not in the string, from position on.
local function new_bytes(log, position, count)
  local bytes = {}
  for index = 1, count do
    local at = position + index - 1
    bytes[index] = struct_pack("<I7I7", log.at[at], log.through[at])
  end
  return table.concat(bytes)
end

local function header(log)
  return log.limit.tag
    .. struct_pack("<I7I7I3I3I3", log.charged_us, log.base, log.head, log.count, log.capacity)
end

-- The whole string anew, with room to grow.
local function rewrite(log, ttl)
  local slots = stored_bytes(log) .. new_bytes(log, 1, #log.at)
  local capacity = log.count > BLOCK and min(2 * log.count, log.limit.size) or 0
  log.head, log.capacity = 0, max(log.count, capacity)
  -- All of it at once: a string that grows is given twice the room it needs.
  local unused = ("\0"):rep((log.capacity - log.count) * SLOT_BYTES)
  return redis_pcall("SET", log.key, header(log) .. slots .. unused, "EX", ttl).err
end

-- The charges that are new, wherever they fall, and the header. A server without memory, or a
-- replica, refuses the first command if it refuses any; after EXPIRE it would not refuse the others.
local function write_in_place(log, ttl)
  local slot = (log.head + log.stored) % log.capacity
  local before_the_end = min(#log.at, log.capacity - slot)
  local runs = {
    { slot, new_bytes(log, 1, before_the_end) },
    { 0, new_bytes(log, before_the_end + 1, #log.at - before_the_end) },
  }
  for _, run in ipairs(runs) do
    if run[2] ~= "" then
      local reply = redis_pcall("SETRANGE", log.key, HEADER_BYTES + run[1] * SLOT_BYTES, run[2])
      if type(reply) == "table" then
        return reply.err
      end
    end
  end
  local reply = redis_pcall("SETRANGE", log.key, 0, header(log))
  if type(reply) ~= "table" then
    reply = redis_pcall("EXPIRE", log.key, ttl)
  end
  return type(reply) == "table" and reply.err or nil
end

sliding_window_log.fresh_at, sliding_window_log.first_read = new_log, FIRST_READ

function sliding_window_log.expires_us(_, over_us)
  return over_us
end

function sliding_window_log.unpacked(value, at, key, limit)
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
    and (#value == bytes or (#value > FIRST_READ and redis.call("STRLEN", key) == bytes))
  return is_whole and log or nil
end

function sliding_window_log.write(log, ttl)
  local is_small = log.count <= BLOCK
  local is_roomy = log.count <= log.capacity and log.capacity <= 4 * log.count
  if is_small or not is_roomy then
    return rewrite(log, ttl)
  end
  return write_in_place(log, ttl)
end

-- ---- beyond a check

function ring.delete(log, index)
  take_out(log, index)
  table.remove(log.at, index - log.stored + 1)
  table.remove(log.through, index - log.stored + 1)
  log.count = log.count - 1
end

function ring.copy(log)
  local copy = new_log(log.key, log.limit)
  copy.base, copy.charged_us = log.base, log.charged_us
  for index = 0, log.count - 1 do
    copy:append(log:read(index))
  end
  return copy
end

function sliding_window_log.packed(log)
  return struct_pack("<I7I7", log.charged_us, log.base)
    .. stored_bytes(log) .. new_bytes(log, 1, #log.at)
end

-- ---- carrying over

first_read = FIRST_READ

function sliding_window_log.fresh()
  return new_log()
end

-- The same log, to be changed apart.
local function log_apart(log)
  local apart = new_log(log.key, log.limit)
  for name, value in pairs(log) do
    apart[name] = value
  end
  apart.at, apart.through, apart.blocks = {}, {}, nil
  for position = 1, #log.at do
    apart.at[position], apart.through[position] = log.at[position], log.through[position]
  end
  return apart
end
