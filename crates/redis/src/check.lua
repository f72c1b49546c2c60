-- Decides a batch of requests, each on its own, in order. Comes after the twins and the states of the
-- algorithms that the batch needs.
--
-- KEYS      the key of every charge, request after request
-- ARGV[1]   the limits, <B I7 I7 I7 Bc0 Bc0 each:
--             algorithm 1 fixed window, 2 counter, 3 log, 4 token bucket, 5 policing, 6 shaping,
--                       7 concurrency
--             size      the limit, or a bucket's capacity
--             a, b      of a bucket, the units and the period of its rate; of a window, counter or log, the
--                       window, and 0; of concurrency, the default time of a hold, and 0
--             tag       the tag of its states
--             format    how plain.lua unpacks a state, the tag first; not used here
-- ARGV[2]   the requests. A plain check, which has one limit, the server's time and no longest wait, is
--           <B I2 I7: 0, its limit, its cost. Any other request is <B I2, what and the number of charges,
--           and for each charge <I2 I7 B I7 I7 I7
--             what      1 check, 2 check all or none, 3 peek, 4 refund, 5 reset, 6 state, 7 settle,
--                       8 extend, 9 take an extension back, 10 open or renew a lease
--             limit     its index in ARGV[1], from 1
--             cost      to settle, the units used, may be 0
--                       to extend, the units to add, may be 0
--                       to take an extension back, the units that were added, may be 0
--             role      for a check or peek, the sum of: 1 for a shadow charge, 0 for an enforced one; 2 if
--                       the charge is a peek; 4 if its units are set aside
--                       for a refund, the kind of the place: 0 in a window, 1 in a log, 2 in a bucket
--                       to settle, 1 if the hold ends
--                       for a lease, 1 if a check of the cost waits for the answer
--             at_us     the caller's time, or 2^53 for the server's time
--             a         for a check or peek, the longest wait, 2^53 for any
--                       for a refund, the first number of the place
--                       to settle or extend, the last expiry that was granted
--                       to take an extension back, the last expiry that was granted before the extension
--                       for a lease, the last expiry that was granted, 2^53 to open it
--             b         for a check or peek whose units are set aside, for how long
--                       for a refund, the second number of the place
--                       to extend, for how long from now
--                       to take an extension back, the expiry that it set
--                       for a lease, for how long from now
--             id        <c8, only of a charge whose units are set aside, and of what 7 to 10
--             for a lease also <I7 I7 I7: the units taken from it so far, the unused units that are wanted, and
--             the most unused units
-- Returns   the server's time, <I7, and the answer for every charge, in one string; if answers refer
--           to texts, a list of that string and the texts. An answer is <B I7 I7 I7, the status and
--             0 denied            remaining, reset_after_us, retry_after_us
--             1 denied for ever   remaining, reset_after_us, 0
--             2 allowed           remaining, reset_after_us, and the part of its place that cannot be
--                                 computed from the other numbers
--             3 allowed later     the same, and one more <I7, delay_us
--             8 to 11             0 to 3, and one more <I7, first_back_us, which is 0 otherwise
--             4 done              of a reset: 0, 0, 0
--                                 of a refund: the units given back, 0, 0
--                                 of a state: the number of the text that is the state; how many texts with
--                                 the slots of a log follow that text; and 1 if one more text with the
--                                 holds follows, otherwise 0
--             5 failed            the number of the text that says why, 0, 0
--             6 put off           0, 0, 0: the state was reached under another limit.
--                                 The request has changed nothing.
--                                 It is to be sent again, to the script that carries over.
--                                 Later requests of this call that share a key with it are put off too.
--                                 1, 0, 0, only from plain.lua: the key has a marked tag (kept_holds.lua).
--                                 The request is to be sent to the script that reads keys with holds. If
--                                 that script puts it off too, it goes to the script that carries over.
--             7 later             0, 0, 0: requests before it took all the work that one call does on
--                                 long logs and holds. The request and all after it are to be sent
--                                 again.
--             12 settled          remaining, reset_after_us, first_back_us, and more: <I7 I7 I7 I7 B I7
--                                 I7, the units charged, how many of them beyond the hold, the units cut,
--                                 the units of the hold that are not held any more, and the kind and the
--                                 two numbers of the charge's place
--             13 extended         remaining, reset_after_us, first_back_us, and more: <I7 I7, the expiry,
--                                 and the units that the hold has now
--             14 not extended     remaining, reset_after_us, first_back_us, and one more <I7,
--                                 retry_after_us: 2^53 for never, 2^54 if this part was not refused, but
--                                 another part was, or its hold has ended
--             15 hold expired, 16 hold unknown
--                                 remaining, reset_after_us, first_back_us
--             32 to 35, 40 to 43  0 to 3 and 8 to 11 of a key with holds, and more: <B I7 I7, the kind of
--                                 the place, its second number, and the size of the limit that decided.
--                                 If units were set aside, the expiry replaces the part of the place in 2.
--             32 to 35, 40 to 43 of a lease
--                                 the same for the check that waits; and more: <B I7 I7 I7 I7, the state of
--                                 the lease (0 open, 1 not opened, 2 expired, 3 unknown); and of an open
--                                 lease the unused units, the expiry, how long it lasts, and how many leases
--                                 of the key are open
--           The answer to each charge of a check "all or none" is followed by one more <I7: how many
--           such requests fit, if the charge has a longest wait, otherwise 0. The answer to each part of a
--           request to settle, to extend, or to take an extension back is followed by the size of the
--           limit that the key is under, and the answer for a lease by 0.
-- Example   KEYS "tollgate:{a}:api", a fixed window of 2 a minute, a check of cost 1:
--           2, 1, 60000000 less the time since the minute began, the minute's beginning
--
-- Everything is read and decided before anything is written: a request that fails has changed nothing.
local PLAIN_CHECK, CHECK, CHECK_ALL, PEEK, REFUND, RESET, STATE, SETTLE, EXTEND, TAKE_BACK, LEASE =
  0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local DENIED, DENIED_FOR_EVER, ALLOWED, ALLOWED_LATER, DONE, FAILED, PUT_OFF, LATER =
  0, 1, 2, 3, 4, 5, 6, 7
-- Added to a status if first_back_us follows.
local AND_FIRST_BACK = 8
local ANSWER = "<BI7I7I7"

local KEYS = KEYS

-- How long a state is kept after it is no longer needed: the 10 s that a clock may step back, and up to a
-- second for rounding. With the caller's time an hour more, because it may differ from the server's.
local SPARE_S, CALLERS_SPARE_S = 11, 3611

local server_us
do
  local time = redis.call("TIME")
  server_us = time[1] * 1000000 + time[2]
end

-- The states by key, as the earlier requests have left them; the states to write, or to delete if their
-- ttl_s is 0; and the keys that the server has no state of.
local states, changed, is_fresh = {}, {}, {}
-- The packed answer of every charge, in the order of their keys.
local answers, answered = {}, 0
local texts = {}
-- Whether a decision is void, because its state is corrupt or could not be written.
local has_failed = false
-- The keys of requests that were put off, if there are any.
local put_off

-- The work of this call on logs of more than 64 charges, in units:
--   1    a check or peek
--   2    each charge of a check of several limits, and each part of a request on holds
--        These two are doubled if the log has more than twice as many charges as its limit has units. Otherwise,
--        3 units are added if the string may grow, because the server may have to move it.
--   8    a refund
--   16   a state
-- A call ends after 20 units: its first request is always decided, and others as long as units are left.
-- A batch of 16 checks of one log is decided in one call.
local LONG_LOG, MAX_WORK = 64, 20
local work, is_over = 0, false

local function work_on(state, units)
  if not (state and state.count and state.count > LONG_LOG) then
    return 0
  end
  if units > 2 then
    return units
  elseif state.count > 2 * state.limit.size then
    return 2 * units
  elseif not state.has_grown and state:is_full() then
    state.has_grown = true
    return units + 3
  end
  return units
end

-- Whether a request of this much work is decided in this call.
local function fits_in_call(units)
  if is_over or (work > 0 and work + units > MAX_WORK and units > 0) then
    is_over = true
    return false
  end
  work = work + units
  return true
end

-- Carries a state over to another limit. Returns the new state, which `change` has yet to note, and the limit that
-- decides. If the key stays under its old limit, returns the same state, and the old limit with the new size.
local carried_over

-- Returns the state of a key; nil if it was reached under another limit and this script cannot read it, or
-- if an earlier request of the key was put off.
local function found_at(key, limit)
  local state = states[key]
  if not state then
    local is_new
    state, is_new = read(key, limit)
    states[key] = state
    -- Only if it is new: assigning nil would also create an entry.
    if is_new then
      is_fresh[key] = true
    end
  end
  if state.limit == false or (put_off and put_off[key]) then
    return nil
  end
  return state
end

-- Returns the state of a key, and the limit that decides on it. That is this limit, or, if the key stays under its
-- old limit for now, the old limit with the size of this one. Nil if found_at returns nil, or if the state was
-- reached under another limit and this script does not carry over.
local function state_at(key, limit, now_us, cost)
  local state = found_at(key, limit)
  if not state or state.limit == limit or state.problem then
    return state, limit
  elseif not carried_over then
    return nil
  end
  return carried_over(state, limit, now_us, cost)
end

local function change(state, now_us, reset_after_us, spare_s)
  -- A state that was carried over replaces the old one.
  if not state.ttl_s or states[state.key] ~= state then
    changed[#changed + 1] = state
    states[state.key] = state
  end
  local limit = state.limit
  local expires_us = limit.decide.expires_us(state, now_us + reset_after_us)
  -- Kept until it has expired by the caller's time, and also by the server's time, which other requests may use.
  -- For the server's time it is kept at most longest_us, the longest time that units can stay spent.
  local longest_us = limit.window_us and 2 * limit.window_us
    or (limit.time_to_full_us or 0) + EXPIRY_STEP_US
  local left_us = max(expires_us - now_us, min(expires_us - server_us, longest_us), 0)
  state.ttl_s = (left_us - left_us % 1000000) / 1000000 + spare_s
end

local function answer(packed)
  answered = answered + 1
  answers[answered] = packed
end

-- Notes that later requests of this key are put off too: the script that carries over decides them.
local function put_off_from(key)
  put_off = put_off or {}
  put_off[key] = true
end

-- Returns a failure. All failures of one state refer to the same text.
local function packed_failure(state)
  if not state.text then
    texts[#texts + 1] = state.problem .. "\n" .. state.key
    state.text = #texts
  end
  return struct_pack(ANSWER, FAILED, state.text, 0, 0)
end

local function packed_decision(
  limit, is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us, place)
  local status, last = DENIED, retry_after_us
  if is_allowed then
    status, last = delay_us > 0 and ALLOWED_LATER or ALLOWED, place or 0
  elseif retry_after_us == NEVER then
    status, last = DENIED_FOR_EVER, 0
  end
  if limit.requested then
    first_back_us =
      algorithm.in_place_of(limit, limit.requested, remaining, reset_after_us, first_back_us)
  end
  if first_back_us > 0 and delay_us > 0 then
    return struct_pack("<BI7I7I7I7I7",
      status + AND_FIRST_BACK, remaining, reset_after_us, last, delay_us, first_back_us)
  elseif first_back_us > 0 then
    return struct_pack("<BI7I7I7I7",
      status + AND_FIRST_BACK, remaining, reset_after_us, last, first_back_us)
  elseif delay_us > 0 then
    return struct_pack("<BI7I7I7I7", status, remaining, reset_after_us, last, delay_us)
  end
  return struct_pack(ANSWER, status, remaining, reset_after_us, last)
end

-- Returns whether the decision shows that the state is corrupt: more would remain than the limit has.
local function is_corrupt(state, limit, remaining)
  if remaining > limit.size or state.is_corrupt then
    -- Earlier decisions on it are void too, also under another limit.
    state.problem, has_failed, states[state.key] = CORRUPT, true, state
    return true
  end
end

local function check_one(key, limit, now_us, cost, max_wait_us, spare_s)
  if is_over then
    return answer(struct_pack(ANSWER, LATER, 0, 0, 0))
  end
  local state
  state, limit = state_at(key, limit, now_us, cost)
  if not fits_in_call(work_on(state, 1)) then
    return answer(struct_pack(ANSWER, LATER, 0, 0, 0))
  elseif not state then
    put_off_from(key)
    return answer(struct_pack(ANSWER, PUT_OFF, 0, 0, 0))
  elseif state.problem then
    return answer(packed_failure(state))
  end
  local is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us, place,
    place_too = check(limit, state, now_us, cost, max_wait_us)
  if (remaining > limit.size or state.is_corrupt) and is_corrupt(state, limit, remaining) then
    return answer(packed_failure(state))
  end
  answered = answered + 1
  answers[answered] = packed_decision(
    limit, is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us, place,
    place_too, state)
  if is_allowed or state.is_restarted or state.is_carried then
    change(state, now_us, reset_after_us, spare_s)
  end
end

-- The first and last charge of the check "all or none" that a charge belongs to, if any.
local siblings_of
-- Makes void what a corrupt state would leave half done.
local void_siblings
-- Reads the rest of a request that is not a plain check, and decides it. Returns where it ends, and its
-- last key.
local decide_beyond

-- ---- beyond a check

-- The parts of a role, which are added.
local SHADOW_ROLE, PEEK_ROLE, HOLD_ROLE = 1, 2, 4
local WORK = { [PEEK] = 1, [REFUND] = 8, [STATE] = 16 }

-- Settles or extends the holds of a request.
local decide_holds

-- Returns whether the server will have no state of the key after this call.
local function is_absent(state)
  return not state.is_carried
    and (state.ttl_s == 0 or (is_fresh[state.key] and not state.ttl_s))
end

local function peek(state, limit, now_us, cost, max_wait_us)
  local is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us =
    algorithm.peek(limit, state, now_us, cost, max_wait_us)
  if is_corrupt(state, limit, remaining) then
    return answer(packed_failure(state))
  end
  answer(packed_decision(
    limit, is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us, nil, nil,
    state))
end

-- Returns the kind of place of a charge under this limit: in a window, in a log, or in a bucket.
local function place_kind(limit)
  return limit.time_to_full_us and 2 or limit.decide == sliding_window_log and 1 or 0
end

local function refund(state, limit, now_us, cost, kind, place, place_too, spare_s)
  if is_absent(state) then
    return answer(struct_pack(ANSWER, DONE, 0, 0, 0))
  end
  -- The charge was made under an earlier limit and is not in this limit's state. It gets a place for which 0
  -- units are given back: no window or log has the time 2^53, and a bucket's charge is over if over_us is 0.
  if kind ~= place_kind(limit) then
    place, place_too = TWO_53, 0
  end
  local back = algorithm.refund(limit, state, now_us, cost, place, place_too)
  local _, standing = algorithm.read_standing(limit, state, now_us)
  if is_corrupt(state, limit, limit.decide.remaining(limit, standing)) then
    return answer(packed_failure(state))
  end
  answer(struct_pack(ANSWER, DONE, back, 0, 0))
  change(state, now_us, limit.decide.reset_after_us(limit, standing), spare_s)
end

-- Deletes a state without reading it, so that a corrupt state can be reset as well.
local function reset(key, limit)
  if put_off and put_off[key] then
    return answer(struct_pack(ANSWER, PUT_OFF, 0, 0, 0))
  end
  local state = fresh_at(key, limit)
  states[key] = state
  answer(struct_pack(ANSWER, DONE, 0, 0, 0))
  changed[#changed + 1], state.ttl_s = state, 0
end

-- Sends a state unchanged; its tag names its limit. The slots of a log are separate texts, because
-- joining them takes longer than sending them.
local function send_state(state)
  local decide = state.limit.decide
  texts[#texts + 1] = is_absent(state) and "" or state.limit.tag .. decide.packed(state)
  local first = #texts
  if decide.slots and not is_absent(state) then
    for _, slots in ipairs(decide.slots(state)) do
      texts[#texts + 1] = slots
    end
  end
  local slots = #texts - first
  local has_holds = state.holds and state.holds.count > 0 and not is_absent(state)
  if has_holds then
    texts[#texts + 1] = hold_list.packed(state.holds)
  end
  answer(struct_pack(ANSWER, DONE, first, slots, has_holds and 1 or 0))
end

-- Notes that the next `count` answers belong to one check.
local function add_siblings(count)
  local siblings = { first = answered + 1, last = answered + count, are_void = false }
  siblings_of = siblings_of or {}
  for index = siblings.first, siblings.last do
    siblings_of[index] = siblings
  end
  return siblings
end

-- A request of several parts must not be written in part. If a state of it turns out to be corrupt, the states of its
-- other parts are not written either. All decisions on these states are void then, also the decisions of other requests.
function void_siblings()
  local is_more = true
  while is_more do
    is_more = false
    for index = 1, answered do
      local siblings, state = siblings_of[index], states[KEYS[index]]
      if siblings and state and not siblings.are_void then
        local failed = siblings.failed
        if state.problem and not failed then
          siblings.failed, is_more = state, true
        elseif failed and not state.problem and state.ttl_s then
          -- The answers name the key of the corrupt state.
          packed_failure(failed)
          state.problem, state.text, is_more = failed.problem, failed.text, true
        end
      end
    end
  end
end

-- Puts a request off, with all of its keys, so that later requests of these keys are put off too.
local function put_all_off(charges)
  add_siblings(#charges)
  for _, charge in ipairs(charges) do
    put_off_from(charge.key)
    answer(struct_pack("<BI7I7I7I7", PUT_OFF, 0, 0, 0, 0))
  end
end

-- Leaves a check of several limits to a later call.
local function put_all_later(count)
  add_siblings(count)
  for _ = 1, count do
    answer(struct_pack("<BI7I7I7I7", LATER, 0, 0, 0, 0))
  end
end

-- Decides a part of a check of several limits, and charges nothing.
local function peek_part(part, now_us)
  return algorithm.peek(part.limit, part.state, now_us, part.cost, part.max_wait_us)
end

-- Charges a part of a check that all its limits admit.
local function charge_part(part, now_us)
  return check(part.limit, part.state, now_us, part.cost, part.max_wait_us)
end

-- Twin of check_all in crates/core/src/check_all.rs, which also combines the answers.
local function check_all(charges, now_us, spare_s)
  local problem, is_refused = nil, false
  local siblings = add_siblings(#charges)
  for _, charge in ipairs(charges) do
    local state, limit = charge.state, charge.limit
    if not state.problem then
      if not charge.is_peek then
        algorithm.restart_clock(limit, state, now_us)
      end
      charge.decided = { peek_part(charge, now_us) }
      is_refused = is_refused or (not charge.is_shadow and not charge.decided[1])
      is_corrupt(state, limit, charge.decided[2])
    end
    problem = problem or (state.problem and state)
  end
  siblings.are_void = problem ~= nil
  for _, charge in ipairs(charges) do
    local state, limit, decided = charge.state, charge.limit, charge.decided
    if problem then
      answer(packed_failure(problem) .. struct_pack("<I7", 0))
    else
      local is_charged = not is_refused and not charge.is_peek and decided[1]
      if is_charged then
        decided = { charge_part(charge, now_us) }
      end
      local fits = charge.max_wait_us
        and algorithm.fits(limit, state, now_us, charge.cost, charge.max_wait_us)
      decided[9] = state
      answer(packed_decision(limit, unpack(decided, 1, 9)) .. struct_pack("<I7", fits or 0))
      if is_charged or not charge.is_peek and (state.is_restarted or state.is_carried) then
        change(state, now_us, decided[4], spare_s)
      end
    end
  end
end

function decide_beyond(what, count, requests, position, key_at, limits)
  local charges, now_us, spare_s, is_put_off = {}, server_us, SPARE_S, false
  local units = 0
  for index = 1, count do
    local limit_at, cost, role, at_us, a, b
    limit_at, cost, role, at_us, a, b, position =
      struct_unpack("<I2I7BI7I7I7", requests, position)
    if at_us < TWO_53 then
      now_us, spare_s = at_us, CALLERS_SPARE_S
    end
    local hold_id, used, want, most
    if what == LEASE then
      hold_id, used, want, most, position = struct_unpack("<c8I7I7I7", requests, position)
    elseif what >= SETTLE or (what == CHECK_ALL and role >= HOLD_ROLE) then
      hold_id, position = struct_unpack("<c8", requests, position)
    end
    local limit, max_wait_us = limits[limit_at], a < TWO_53 and a or nil
    key_at = key_at + 1
    local key = KEYS[key_at]
    local state
    if is_over then
      state = nil
    elseif what == STATE or what == REFUND or (what >= SETTLE and what ~= LEASE) then
      -- The state stays under the limit that it has: of these requests, only an extension may carry it over, and
      -- decide_holds does that.
      state = found_at(key, limit)
      if what >= SETTLE and state and state.limit.tag ~= limit.tag and is_absent(state) then
        -- A key without a state has nothing held under any limit.
        local fresh = fresh_at(key, limit)
        fresh.ttl_s, state = state.ttl_s, fresh
      end
    elseif what ~= RESET and what ~= CHECK then
      state, limit = state_at(key, limit, now_us, cost)
    end
    if what == CHECK_ALL or what >= SETTLE then
      units = units + work_on(state, 2)
    elseif what ~= CHECK and not fits_in_call(work_on(state, WORK[what] or 0)) then
      answer(struct_pack(ANSWER, LATER, 0, 0, 0))
      what = nil
    end
    if not what then
      return position, key_at
    elseif what == RESET then
      reset(key, limit)
    elseif what == CHECK then
      check_one(key, limit, now_us, cost, max_wait_us, spare_s)
    elseif what == CHECK_ALL or what >= SETTLE then
      is_put_off = is_put_off or not state
      charges[index] = {
        key = key, state = state, limit = limit, cost = cost, max_wait_us = max_wait_us,
        is_shadow = role % PEEK_ROLE == SHADOW_ROLE, is_peek = role % HOLD_ROLE >= PEEK_ROLE,
        hold_id = hold_id, is_last = role == 1, expires_us = a, hold_for_us = b,
        used = used, want = want, most = most,
      }
    elseif not state then
      put_off_from(key)
      answer(struct_pack(ANSWER, PUT_OFF, 0, 0, 0))
    elseif state.problem then
      answer(packed_failure(state))
    elseif what == PEEK then
      peek(state, limit, now_us, cost, max_wait_us)
    elseif what == REFUND then
      refund(state, state.limit, now_us, cost, role, a, b, spare_s)
    else
      send_state(state)
    end
  end
  if (what == CHECK_ALL or what >= SETTLE) and not fits_in_call(units) then
    put_all_later(count)
  elseif is_put_off then
    put_all_off(charges)
  elseif what == CHECK_ALL then
    check_all(charges, now_us, spare_s)
  elseif what >= SETTLE then
    decide_holds(what, charges, now_us, spare_s)
  end
  return position, key_at
end

-- ---- carrying over

function carried_over(state, limit, now_us, cost)
  local key, old = state.key, state.limit
  -- The state was found by its tag, under the same limit that is now wanted.
  if old.tag == limit.tag then
    state.limit = limit
    return state, limit
  end
  -- A key without a state has spent nothing under any limit.
  if is_absent(state) then
    local fresh = fresh_at(key, limit)
    fresh.ttl_s = state.ttl_s
    return fresh, limit
  end
  local _, standing = algorithm.read_standing(old, state, now_us)
  if is_corrupt(state, old, old.decide.remaining(old, standing)) then
    return state, limit
  end
  local is_done, decides, carried = algorithm.carry_over(limit, old, state, now_us, cost)
  if not is_done then
    decides.requested = limit
    return state, decides
  end
  carried = carried == state and state:copy() or carried
  carried.key, carried.limit, carried.ttl_s, carried.is_carried = key, limit, false, true
  return carried, limit
end

-- ---- everything is read and decided

local limits, position = {}, 1
while position <= #ARGV[1] do
  local kind, size, a, b, tag, _, after = struct_unpack("<BI7I7I7Bc0Bc0", ARGV[1], position)
  local limit = new_limit(kind, size, a, b)
  limits[#limits + 1], limit.tag, position = limit, tag, after
end

local requests, key_at = ARGV[2], 0
position = 1
local end_of_requests = #requests
while position <= end_of_requests do
  local what, limit_at, cost, after = struct_unpack("<BI2I7", requests, position)
  if what == PLAIN_CHECK then
    position, key_at = after, key_at + 1
    check_one(KEYS[key_at], limits[limit_at], server_us, cost, nil, SPARE_S)
  else
    -- The number of charges is in the place of the limit.
    position, key_at = decide_beyond(what, limit_at, requests, position + 3, key_at, limits)
  end
end

-- ---- now it is written

if has_failed and siblings_of then
  void_siblings()
end

local ttls = {}
for index = 1, #changed do
  local state = changed[index]
  -- A later request of this call may have replaced the state by another.
  if not state.problem and states[state.key] == state then
    local ttl_s, problem = state.ttl_s, nil
    if ttl_s == 0 then
      -- A replica refuses this command.
      local reply = redis_pcall("DEL", state.key)
      problem = type(reply) == "table" and reply.err
    else
      local ttl = ttls[ttl_s]
      if not ttl then
        ttl = string.format("%d", ttl_s)
        ttls[ttl_s] = ttl
      end
      problem = write(state, ttl)
    end
    if problem then
      state.problem, has_failed = problem, true
    end
  end
end

-- Decisions on a state that could not be written are void, and so are the decisions of the same check on
-- other states.
if has_failed then
  for index = 1, answered do
    local state = states[KEYS[index]]
    local siblings = siblings_of and siblings_of[index]
    -- A key that no request of this call has reached has no state here.
    local problem = state and state.problem
    if problem and not siblings then
      answers[index] = packed_failure(state)
    elseif problem and not siblings.are_void then
      siblings.are_void = true
      for sibling = siblings.first, siblings.last do
        answers[sibling] = packed_failure(state) .. struct_pack("<I7", 0)
      end
    end
  end
end

local packed = struct_pack("<I7", server_us) .. table.concat(answers)
if #texts == 0 then
  return packed
end
table.insert(texts, 1, packed)
return texts
