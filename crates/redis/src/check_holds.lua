-- Requests beside holds. Comes after the functions of check.lua, before it decides the batch; only batches with
-- holds load it. check.lua describes the requests and the answers, kept_holds.lua the holds of a state.
--
-- Replaces functions of the twins and of check.lua by functions that take the holds of a key into account. In a
-- function, because Lua allows 200 local variables outside of one.
local function replace_for_holds()
  local SETTLED, EXTENDED, NOT_EXTENDED, HOLD_EXPIRED, HOLD_UNKNOWN = 12, 13, 14, 15, 16
  -- Added to the status of a decision on a key with holds.
  local AND_HOLDS = 32
  -- Sent instead of retry_after_us: waiting never helps; only other parts were refused or have ended.
  local WAIT_NEVER, WAIT_OF_OTHERS = TWO_53, 2 * TWO_53
  local NO_HOLDS = hold_list.new()
  local check_alone, peek_alone, fits_alone, restart_alone, carry_over_alone, refund_alone =
    check, algorithm.peek, algorithm.fits, algorithm.restart_clock, algorithm.carry_over, refund
  local packed_alone, change_alone, work_alone = packed_decision, change, work_on
  local peek_part_alone, charge_part_alone = peek_part, charge_part

  local function has_holds(state)
    return state.holds and state.holds.count > 0
  end

  function check(limit, state, now_us, cost, max_wait_us)
    if has_holds(state) then
      return held.check(limit, state, state.holds, now_us, cost)
    end
    return check_alone(limit, state, now_us, cost, max_wait_us)
  end

  function algorithm.peek(limit, state, now_us, cost, max_wait_us)
    if has_holds(state) then
      return held.peek(limit, state, state.holds, now_us, cost)
    end
    return peek_alone(limit, state, now_us, cost, max_wait_us)
  end

  function algorithm.fits(limit, state, now_us, cost, max_wait_us)
    if has_holds(state) then
      local _, remaining = held.peek(limit, state, state.holds, now_us, cost)
      return (remaining - remaining % cost) / cost
    end
    return fits_alone(limit, state, now_us, cost, max_wait_us)
  end

  function algorithm.restart_clock(limit, state, now_us)
    if has_holds(state) then
      return held.restart_clock(limit, state, state.holds, now_us)
    end
    return restart_alone(limit, state, now_us)
  end

  function algorithm.carry_over(limit, old, state, now_us, cost)
    if not has_holds(state) then
      return carry_over_alone(limit, old, state, now_us, cost)
    end
    local copy, holds = old.decide.copy(state), hold_list.copy(state.holds)
    local is_done, decides, carried = held.carry_over(limit, old, copy, holds, now_us, cost)
    if not is_done then
      return nil, decides, state
    end
    carried.holds = holds
    return true, decides, carried
  end

  function peek_part(part, now_us)
    if part.hold_id and not part.limit.is_shaping then
      local holds = part.state.holds or NO_HOLDS
      return held.peek_reserve(part.limit, part.state, holds, now_us, part.cost)
    end
    return peek_part_alone(part, now_us)
  end

  function charge_part(part, now_us)
    local state = part.state
    if not part.hold_id then
      return charge_part_alone(part, now_us)
    elseif part.limit.is_shaping then
      return unpack(part.decided, 1, 6)
    end
    state.holds = state.holds or hold_list.new()
    return held.reserve(
      part.limit, state, state.holds, now_us, part.hold_id, part.cost, part.hold_for_us)
  end

  -- Adds to a packed decision what the answer of a key with holds has more.
  local function with_holds(packed, limit, place_too)
    return string.char(packed:byte(1) + AND_HOLDS) .. packed:sub(2)
      .. struct_pack("<BI7I7", place_kind(limit), place_too or 0, limit.size)
  end

  function packed_decision(limit, is_allowed, remaining, retry_after_us, reset_after_us, delay_us,
    first_back_us, place, place_too, state)
    local packed = packed_alone(
      limit, is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us, place)
    if not (state and state.holds) then
      return packed
    end
    return with_holds(packed, limit, place_too)
  end

  function refund(state, limit, now_us, cost, kind, place, place_too, spare_s)
    local holds = state.holds
    if not has_holds(state) then
      return refund_alone(state, limit, now_us, cost, kind, place, place_too, spare_s)
    elseif kind ~= place_kind(limit) then
      place, place_too = TWO_53, 0
    end
    local back = held.refund(limit, state, holds, now_us, cost, place, place_too)
    local _, remaining, _, reset_after_us = held.peek(limit, state, holds, now_us, 1)
    if is_corrupt(state, limit, remaining) then
      return answer(packed_failure(state))
    end
    answer(struct_pack(ANSWER, DONE, back, 0, 0))
    change(state, now_us, reset_after_us, spare_s)
  end

  -- A key with holds is also kept until its last hold expires, even if that hold has no units left, and until a
  -- bucket above its capacity has drained.
  function change(state, now_us, reset_after_us, spare_s)
    change_alone(state, now_us, reset_after_us, spare_s)
    local holds, decide = state.holds, state.limit.decide
    if decide.only_holds and not has_holds(state) then
      -- Nothing is left of the key.
      state.ttl_s = 0
      return
    elseif not holds then
      return
    end
    local over_us = now_us + reset_after_us
    if holds.count > 0 then
      over_us = max(over_us, holds.expires[holds.count])
    end
    local expires_us = max(decide.expires_us(state, over_us), over_us)
    local longest_us = expires_us - decide.floor_us(state)
    local left_us = max(expires_us - now_us, min(expires_us - server_us, longest_us), 0)
    state.ttl_s = (left_us - left_us % 1000000) / 1000000 + spare_s
  end

  function work_on(state, units)
    local own = work_alone(state, units)
    if state and state.holds then
      return own + state.holds.count / 128
    end
    return own
  end

  -- Returns the state of the first part that cannot be read, if any: nothing is changed then.
  local function first_problem(parts, now_us)
    for _, part in ipairs(parts) do
      local state = part.state
      local limit = state.limit
      if not state.problem and limit.decide == sliding_window_log then
        algorithm.read_standing(limit, state, now_us)
        is_corrupt(state, limit, 0)
      end
      if state.problem then
        return state
      end
    end
  end

  local ENDED = { expired = HOLD_EXPIRED, unknown = HOLD_UNKNOWN }

  -- Answers a part. `decided` is a decision.
  local function answer_part(status, limit, decided, more)
    answer(struct_pack(ANSWER, status, decided[2], decided[4], decided[6])
      .. (more or "") .. struct_pack("<I7", limit.size))
  end

  local function settle(part, now_us, spare_s)
    local state = part.state
    local limit, holds = state.limit, state.holds or hold_list.new()
    local done, charged, excess, cut, freed, place, place_too = held.settle(
      limit, state, holds, now_us, part.hold_id, part.expires_us, part.cost, part.is_last)
    local is_done = done == "done"
    local decided = { held.decision_after(limit, state, holds, now_us, is_done) }
    if is_done then
      answer_part(SETTLED, limit, decided, struct_pack("<I7I7I7I7BI7I7",
        charged, excess, cut, freed, place_kind(limit), place or 0, place_too or 0))
    else
      answer_part(ENDED[done], limit, decided)
    end
    if is_done or state.is_restarted then
      change(state, now_us, decided[4], spare_s)
    end
  end

  local function packed_wait(retry_after_us)
    return struct_pack("<I7", retry_after_us == NEVER and WAIT_NEVER or retry_after_us)
  end

  -- Extends a part, unless another part is refused or has ended.
  local function extend(part, now_us, spare_s, is_refused)
    local state, limit = part.state, part.limit
    local holds = state.holds or hold_list.new()
    local done, decided = part.extension, nil
    if not is_refused then
      local until_us, units =
        held.grow(limit, state, holds, now_us, part.hold_id, part.cost, part.hold_for_us)
      decided = { held.decision_after(limit, state, holds, now_us, true) }
      answer_part(EXTENDED, limit, decided, struct_pack("<I7I7", until_us, units))
    elseif done == "granted" then
      local asked = part.asked
      decided = { algorithm.peek(asked, part.seen, now_us, max(part.cost, 1)) }
      if asked.requested then
        decided[6] = algorithm.in_place_of(
          asked, asked.requested, decided[2], decided[4], decided[6])
      end
      answer_part(NOT_EXTENDED, asked, decided, struct_pack("<I7", WAIT_OF_OTHERS))
    elseif done == "refused" then
      decided = { held.peek_units(limit, state, holds, now_us, part.cost) }
      answer_part(NOT_EXTENDED, limit, decided, packed_wait(decided[3]))
    else
      decided = { held.decision_after(limit, state, holds, now_us, false) }
      answer_part(ENDED[done], limit, decided)
    end
    -- A part that would be granted, but for another part, is not carried over: it stays under its old limit.
    local is_moved = state.is_carried and done ~= "granted"
    if not is_refused or state.is_restarted or is_moved then
      change(state, now_us, decided[4], spare_s)
    end
  end

  local function take_back(part, now_us, spare_s)
    local state = part.state
    local limit, holds = state.limit, state.holds or hold_list.new()
    local done, until_us, units = held.take_back(
      limit, state, holds, now_us, part.hold_id, part.expires_us, part.cost, part.hold_for_us)
    local decided = { held.decision_after(limit, state, holds, now_us, done == "granted") }
    if done ~= "granted" then
      return answer_part(ENDED[done], limit, decided)
    end
    answer_part(EXTENDED, limit, decided, struct_pack("<I7I7", until_us, units))
    change(state, now_us, decided[4], spare_s)
  end

  local function lease(part, now_us, spare_s)
    local LEASE_STATES = { open = 0, none = 1, expired = 2, unknown = 3 }

    -- Decides a request for a lease on a key that cannot have one, because it is still under an old limit. Returns the same
    -- values as held.lease.
    local function lease_nothing(limit, state, now_us, request)
      local ended = request.expires_us and "unknown" or "none"
      if request.need then
        local decided = { check(limit, state, now_us, request.need) }
        return decided[1], decided, ended
      end
      local decided = { algorithm.peek(limit, state, now_us, 1) }
      decided[1], decided[3], decided[5] = not request.expires_us, NEVER, 0
      return false, decided, ended
    end

    local state, limit = part.state, part.limit
    local request = {
      id = part.hold_id, used = part.used, want = part.want, most = part.most,
      lease_for_us = part.hold_for_us, need = part.is_last and part.cost or nil,
      expires_us = part.expires_us < TWO_53 and part.expires_us or nil,
    }
    local is_changed, decided, what, unused, expires_us, lasts_us, leases
    if limit.is_shaping or limit.decide.only_holds then
      is_changed, decided, what = lease_nothing(limit, state, now_us, request)
    else
      state.holds = state.holds or hold_list.new()
      is_changed, decided, what, unused, expires_us, lasts_us, leases =
        held.lease(limit, state, state.holds, now_us, request)
    end
    answer(with_holds(packed_alone(limit, unpack(decided, 1, 7)), limit, decided[8])
      .. struct_pack("<BI7I7I7I7I7",
        LEASE_STATES[what], unused or 0, expires_us or 0, lasts_us or 0, leases or 0, 0))
    if is_changed or state.is_restarted or state.is_carried then
      change(state, now_us, decided[4], spare_s)
    end
  end

  -- Decides each part. A part that adds units to a hold of its key is decided as its request's limit says, and its
  -- key may be carried over; any other part is decided under the limit that its key is under. Returns whether a part
  -- is refused or its hold has ended. Nil if a state was reached under a limit that this script cannot read.
  local function decide_extensions(parts, now_us)
    local is_refused = false
    for _, part in ipairs(parts) do
      local state, requested = part.state, part.limit
      part.requested, part.limit = requested, state.limit
      if part.cost > 0 and state.holds and state.holds:find(part.hold_id) then
        state, part.limit = state_at(part.key, requested, now_us, part.cost)
        if not state then
          return nil
        end
        part.state = state
      end
      algorithm.restart_clock(part.limit, state, now_us)
      part.extension = held.peek_extend(part.limit, state, state.holds or NO_HOLDS, now_us,
        part.hold_id, part.expires_us, part.cost)
      is_refused = is_refused or part.extension ~= "granted"
    end
    for _, part in ipairs(is_refused and parts or {}) do
      if part.extension == "granted" then
        -- It is answered as a peek, under the limit of the request.
        part.seen, part.asked = state_at(part.key, part.requested, now_us, max(part.cost, 1))
        if not part.seen then
          return nil
        end
      end
    end
    return is_refused
  end

  function decide_holds(what, parts, now_us, spare_s)
    local problem = first_problem(parts, now_us)
    local is_refused = false
    if what == EXTEND and not problem then
      is_refused = decide_extensions(parts, now_us)
    end
    if is_refused == nil then
      return put_all_off(parts)
    end
    add_siblings(#parts).are_void = problem ~= nil
    for _, part in ipairs(parts) do
      if problem then
        answer(packed_failure(problem) .. struct_pack("<I7", 0))
      elseif what == SETTLE then
        settle(part, now_us, spare_s)
      elseif what == LEASE then
        lease(part, now_us, spare_s)
      elseif what == TAKE_BACK then
        take_back(part, now_us, spare_s)
      else
        extend(part, now_us, spare_s, is_refused)
      end
      is_corrupt(part.state, part.state.limit, 0)
    end
  end
end

replace_for_holds()
