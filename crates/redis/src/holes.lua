-- Long logs with a trailer. A log gets one when a charge in the middle is refunded (a hole), when the clock
-- steps back, or when the ring grows in small steps. Comes after ring.lua. The functions are created only
-- when a script needs them.
--
-- Removing a charge from the middle of a long log would mean to write everything after it again:
-- 35 ms for 65,536 charges. Instead its slot becomes a hole, which reads as a charge of cost 0.
-- Refunds also compact the log: compaction starts at 128 holes and moves on by 512 slots with each
-- refund. It reaches the end of the longest log after 131 refunds, so a log has at most 260 holes.
--
-- The charges of a ring may fill its slots to the end and continue at slot 0. If such a ring is nearly full,
-- it gets new slots at its end. These are a gap: the older charges are before it, the newer ones after it.
-- With each new charge, 16 charges after the gap move to its beginning. When all have moved, the free slots
-- follow the newest charge, and the gap has ended.
--
-- The trailer   follows the slots: <I7 I7 I3 I3 I4 I3: lead, back_us, gap_at, gap, gap_units, number of
--               holes; then <I3 I7 for each hole, in the log's order: its slot and its offset
-- back_us       how far the clock has stepped back: a charge's time is its slot's less back_us
-- offset        what to subtract from a slot's running sum. A charge has the offset of the last hole
--               before it, or `lead` if there is none; a hole has its own. The offset of a hole is the sum
--               of its own units, the units of the holes before it, and the units of holes that have left
--               the window.
-- gap           the number of free slots among the charges. Charges before index gap_at are before the gap;
--               the others are `gap` slots further on, and their offset is higher by gap_units, the units
--               of the holes that compaction has removed. Without a gap, gap_at is 0.
-- Example       charges of 1 unit at 1 s, 2 s and 3 s, the second one refunded: the slots have the
--               sums 1, 2 and 3, the hole in slot 1 has offset 1, and the sums read are 1, 1 and 2
function make_holes()
  if holes then
    return holes
  end
  holes = {}
  local MAX_HOLES, COMPACT_FROM, COMPACT_SLOTS, GROW_SLOTS = 512, 128, 512, 16
  local TRAILER, TRAILER_HEADER_BYTES, HOLE, HOLE_BYTES = "<I7I7I3I3I4I3", 27, "<I3I7", 10

  local function slot_of(log, index)
    local trailer = log.trailer
    if index >= trailer.gap_at then
      index = index + trailer.gap
    end
    return (log.head + index) % log.capacity
  end

  -- Returns the index and the offset of a hole.
  local function hole_at(log, number)
    local trailer = log.trailer
    local slot, offset = struct_unpack(HOLE, trailer.bytes, number * HOLE_BYTES + 1)
    local index = (slot - log.head) % log.capacity
    if index >= trailer.gap_at + trailer.gap then
      index = index - trailer.gap
    end
    return index, offset
  end

  -- Returns the number of holes at an index or before it.
  local function holes_until(log, index)
    local low, high = 0, log.trailer.count
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      if hole_at(log, middle) <= index then
        low = middle + 1
      else
        high = middle
      end
    end
    return low
  end

  local function offset_at(log, index)
    local trailer = log.trailer
    local offset, before = trailer.lead, holes_until(log, index)
    if before > 0 then
      local _, of_hole = hole_at(log, before - 1)
      offset = of_hole
    end
    return index >= trailer.gap_at and offset + trailer.gap_units or offset
  end

  -- Returns the holes as a list of indexes and units. The caller must pass it to set_holes.
  local function listed(log)
    local trailer = log.trailer
    local list, before = {}, trailer.lead
    for number = 0, trailer.count - 1 do
      local index, offset = hole_at(log, number)
      list[number + 1], before = { index = index, units = offset - before }, offset
    end
    -- The charges before the gap have left the window: gap_units now applies to all charges.
    if trailer.gap == 0 then
      trailer.lead, trailer.gap_units = trailer.lead + trailer.gap_units, 0
    end
    return list
  end

  local function set_holes(log, list)
    local trailer, bytes = log.trailer, {}
    local offset = trailer.lead
    for number, hole in ipairs(list) do
      offset = offset + hole.units
      bytes[number] = struct_pack(HOLE, slot_of(log, hole.index), offset)
    end
    trailer.bytes, trailer.count = table.concat(bytes), #list
    log.has_holes = #list > 0
  end

  local function no_gap(trailer)
    trailer.gap_at, trailer.gap, trailer.gap_units = 0, 0, 0
  end

  local function no_trailer()
    return {
      lead = 0, back_us = 0, gap_at = 0, gap = 0, gap_units = 0, count = 0, bytes = "",
    }
  end

  function holes.read(log, index)
    local at_us, through = read_slot(log, slot_of(log, index))
    return max(at_us - log.trailer.back_us, 0), through - offset_at(log, index)
  end

  -- Returns what to add to the time and the running sum of a new charge when it is written.
  function holes.added_to_new(log)
    return log.trailer.back_us, offset_at(log, log.stored - 1)
  end

  function holes.copy(trailer)
    local copy = {}
    for name, value in pairs(trailer) do
      copy[name] = value
    end
    return copy
  end

  -- Updates the trailer before ring.drop moves the head past the `count` oldest charges of the string.
  function holes.drop(log, count)
    local trailer = log.trailer
    if count == log.stored then
      log.trailer, log.has_holes = no_trailer(), false
      return
    end
    local left = holes_until(log, count - 1)
    if left > 0 then
      local _, offset = hole_at(log, left - 1)
      trailer.lead = offset
      trailer.bytes, trailer.count = trailer.bytes:sub(left * HOLE_BYTES + 1), trailer.count - left
      log.has_holes = trailer.count > 0
    end
    if trailer.gap > 0 and count >= trailer.gap_at then
      log.head = (log.head + trailer.gap) % log.capacity
      trailer.gap_at, trailer.gap = 0, 0
    elseif trailer.gap > 0 then
      trailer.gap_at = trailer.gap_at - count
    end
  end

  -- Reads the charges from `index` on into `at` and `through`, without the holes among them, as take_out in
  -- ring.lua does.
  function holes.take_out(log, index)
    local at, through = {}, {}
    local before = log.base
    if index > 0 then
      local _, sum = log:read(index - 1)
      before = sum
    end
    for later = index, log.count - 1 do
      local at_us, sum = log:read(later)
      if sum ~= before then
        at[#at + 1], through[#through + 1], before = at_us, sum, sum
      end
    end
    local list, trailer = listed(log), log.trailer
    while #list > 0 and list[#list].index >= index do
      list[#list] = nil
    end
    if trailer.gap_at >= index then
      no_gap(trailer)
    end
    log.at, log.through, log.stored, log.count = at, through, index, index + #at
    set_holes(log, list)
  end

  -- Drops the holes at the end of the log, so that the newest charge is never a hole.
  function holes.trim(log)
    if #log.at > 0 then
      return
    end
    local list, trailer = listed(log), log.trailer
    while #list > 0 and list[#list].index == log.stored - 1 do
      list[#list] = nil
      log.stored = log.stored - 1
    end
    log.count = log.stored
    if trailer.gap_at >= log.stored then
      no_gap(trailer)
    end
    set_holes(log, list)
  end

  -- Makes the charge at index a hole, and has the log compacted when it is written.
  function holes.remove(log, index, cost)
    log.trailer = log.trailer or no_trailer()
    log.to_compact = (log.to_compact or 0) + COMPACT_SLOTS
    -- Cannot happen (see above). If it did, the refund would give nothing back.
    if log.trailer.count == MAX_HOLES then
      return
    end
    local list = listed(log)
    local position = holes_until(log, index) + 1
    table.insert(list, position, { index = index, units = cost })
    set_holes(log, list)
    for new = 1, #log.through do
      log.through[new] = log.through[new] - cost
    end
  end

  -- Makes every charge earlier by back_us. Returns false and changes nothing if no charge is in the string, or
  -- if times in the slots would reach 2^53.
  function holes.move_back(log, back_us)
    local trailer = log.trailer or no_trailer()
    if log.stored == 0 or log.charged_us + trailer.back_us + back_us >= TWO_53 then
      return false
    end
    log.trailer, trailer.back_us = trailer, trailer.back_us + back_us
    for position = 1, #log.at do
      log.at[position] = max(log.at[position] - back_us, 0)
    end
    return true
  end

  -- Reads the trailer of a log; nil if it cannot have been written here.
  function holes.unpacked(log)
    local from = HEADER_BYTES + log.capacity * SLOT_BYTES
    local value = redis.call("GETRANGE", log.key, from, from + TRAILER_BYTES - 1)
    local trailer = {}
    trailer.lead, trailer.back_us, trailer.gap_at, trailer.gap, trailer.gap_units, trailer.count =
      struct_unpack(TRAILER, value)
    trailer.bytes =
      value:sub(TRAILER_HEADER_BYTES + 1, TRAILER_HEADER_BYTES + trailer.count * HOLE_BYTES)
    log.trailer, log.has_holes = trailer, trailer.count > 0
    local is_whole = trailer.lead < TWO_53 and trailer.back_us < TWO_53
      and trailer.count <= MAX_HOLES and trailer.gap_at <= log.count
      and log.count + trailer.gap <= log.capacity
    return is_whole and log or nil
  end

  -- Returns the trailer as it is sent with a state: with the index of each hole instead of its slot.
  function holes.packed(log)
    local trailer = log.trailer or no_trailer()
    local packed = {
      struct_pack(TRAILER, trailer.lead, trailer.back_us, trailer.gap_at, trailer.gap,
        trailer.gap_units, trailer.count),
    }
    for number = 0, trailer.count - 1 do
      packed[number + 2] = struct_pack(HOLE, hole_at(log, number))
    end
    return table.concat(packed)
  end

  -- Moves the next `slots` charges after the gap to its beginning, and leaves out the holes among them, so that
  -- the gap grows by these. Without a gap it begins at the first hole. All charges must be in the string.
  local function compact(log, slots)
    local trailer, list = log.trailer, nil
    if trailer.gap == 0 then
      list = listed(log)
      trailer.gap_at = list[1].index
    end
    local moved, removed, first = {}, 0, trailer.gap_at
    local until_index = min(first + slots, log.count)
    local next_hole = holes_until(log, first - 1) + 1
    -- Listing all holes is slow, so they are listed only if a hole is among the charges to move.
    if not list and holes_until(log, until_index - 1) >= next_hole then
      list = listed(log)
    end
    for index = first, until_index - 1 do
      local hole = list and list[next_hole]
      if hole and hole.index == index then
        table.remove(list, next_hole)
        removed, trailer.gap_units = removed + 1, trailer.gap_units + hole.units
      else
        local at_us, through = read_slot(log, (log.head + index + trailer.gap) % log.capacity)
        moved[#moved + 1] = struct_pack("<I7I7", at_us, through - trailer.gap_units)
      end
    end
    local slot = (log.head + first) % log.capacity
    log.count, log.stored = log.count - removed, log.stored - removed
    trailer.gap_at, trailer.gap = first + #moved, trailer.gap + removed
    if trailer.gap_at == log.count then
      no_gap(trailer)
    end
    if list then
      for later = next_hole, #list do
        list[later].index = list[later].index - removed
      end
      set_holes(log, list)
    end
    return write_slots(log, slot, table.concat(moved))
  end

  local function write_trailer(log)
    local trailer = log.trailer
    local from = HEADER_BYTES + log.capacity * SLOT_BYTES
    local bytes = struct_pack(TRAILER, trailer.lead, trailer.back_us, trailer.gap_at, trailer.gap,
      trailer.gap_units, trailer.count) .. trailer.bytes
    return set_range(log, from + TRAILER_BYTES - 1, "\0") or set_range(log, from, bytes)
  end

  -- Whether the trailer only has an offset that is the same for all charges.
  local function is_bare(trailer)
    return trailer.count == 0 and trailer.gap == 0 and trailer.back_us == 0
  end

  -- Adds slots at the end of a ring whose charges continue at slot 0. The new slots are a gap between the
  -- charges up to the end and the newer ones.
  local function start_growth(log)
    local list, trailer, capacity = listed(log), log.trailer, log.capacity
    log.capacity = min(capacity + (capacity - capacity % 2) / 2, max_capacity(log))
    trailer.gap_at, trailer.gap = capacity - log.head, log.capacity - capacity
    set_holes(log, list)
    log.blocks, log.first_block = nil, false
    return set_range(log, HEADER_BYTES + log.capacity * SLOT_BYTES - 1, "\0")
  end

  -- Writes the whole string again, without a trailer.
  local function write_anew(log, ttl)
    local trailer = log.trailer
    if is_bare(trailer) then
      -- Running sums may begin anywhere.
      local _, units = holes.added_to_new(log)
      log.base = log.base + units
      for position = 1, #log.through do
        log.through[position] = log.through[position] + units
      end
    else
      take_out(log, 0)
    end
    log.trailer, log.has_holes = nil, false
    return rewrite(log, ttl)
  end

  function holes.write(log, ttl)
    log.trailer = log.trailer or no_trailer()
    local trailer = log.trailer
    local is_small = log.count <= BLOCK or log.stored == 0
    local is_mostly_empty = is_bare(trailer) and is_rewritten(log)
    if is_small or is_mostly_empty or log.charged_us + trailer.back_us >= TWO_53 then
      return write_anew(log, ttl)
    end
    local slots, problem = new_bytes(log, 1, #log.at), nil
    local used = log.stored + (trailer.gap_at < log.stored and trailer.gap or 0)
    if trailer.gap == 0 and is_to_grow(log, used) then
      problem = start_growth(log)
      used = used + trailer.gap
    end
    if not problem and used + #log.at > log.capacity then
      -- `grow` moves slots, and so holes, only if the charges continue at slot 0.
      local list = log.head + used > log.capacity and listed(log)
      problem = grow(log, used + #log.at, used)
      if list then
        set_holes(log, list)
      end
    end
    problem = problem or write_slots(log, (log.head + used) % log.capacity, slots)
    local to_move = log.to_compact or 0
    if trailer.gap > 0 and log.capacity - used - #log.at < log.capacity / 8 then
      to_move = to_move + #log.at * GROW_SLOTS
    end
    log.at, log.through, log.stored = {}, {}, log.count
    if not problem and to_move > 0 and (trailer.gap > 0 or trailer.count >= COMPACT_FROM) then
      log.blocks, log.first_block = nil, false
      problem = compact(log, to_move)
    end
    return problem or set_range(log, 0, header(log)) or write_trailer(log) or expire(log, ttl)
  end

  return holes
end
