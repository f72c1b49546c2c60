-- Decides a batch of requests, each on its own, in order. Comes after the twins and the homes of the
-- algorithms that the batch is about.
--
-- KEYS      the key of every charge, request after request
-- ARGV[1]   the limits, <B I7 I7 I7 each: algorithm, size, and its window, or its rate's units and
--           period; 1 fixed window, 2 counter, 3 log, 4 token bucket, 5 policing, 6 shaping
-- ARGV[2]   the requests: <B I2 I7, then <I2 B I7 I7 I7 for each of its charges
--             what      1 check, 2 check all or none, 3 peek, 4 refund, 5 reset, 6 state
--             charges   how many; one, unless they are checked all or none
--             at_us     2^53 for the server's time
--             limit     which of ARGV[1], from 1
--             role      0 enforced, 1 shadow
--             cost
--             a, b      of a check or peek, the longest wait, 2^53 for any; of a refund, the place
-- Returns   the server's time, <I7, and <B I7 I7 I7 I7 I7 for every charge, in one string; after it
--           the texts that answers refer to
--             status            0 denied, 1 allowed, 2 denied for ever, 3 done, 4 failed
--             remaining         or what a refund gave back
--             reset_after_us
--             wait_us           retry_after when denied, delay when allowed
--             place             of an allowed charge, without what follows from the rest
--             fits              of several charges: how many such requests fit. Of a state or a
--                               failure: which of the texts, from 1
-- Example   KEYS "tollgate:{a}:api:f60000000", a fixed window of 2 a minute, a check of cost 1:
--           1, 1, 60000000 less the time since the minute began, 0, the minute's beginning, 0
--
-- Everything is read and decided before anything is written: what fails has changed nothing.
local CHECK, CHECK_ALL, PEEK, REFUND, RESET = 1, 2, 3, 4, 5
local DENIED, ALLOWED, NEVER_ALLOWED, DONE, FAILED = 0, 1, 2, 3, 4
local SHADOW = 1

-- What a state outlives its usefulness by: as far as a clock may step back; and when the time is
-- the caller's, an hour, because theirs is not the server's.
local SPARE_MS, SPARE_OF_CALLERS_MS = 10001, 3610001

local server_us
do
  local time = redis.call("TIME")
  server_us = time[1] * 1000000 + time[2]
end

-- By key, as the requests before have left it: limit, state, is_fresh while the server has none;
-- reset_after_us, spare_ms, is_dirty and is_gone if it is to be written; or the problem with it.
local entries = {}
-- The entries to be written.
local changed = {}
-- The packed answer of every charge. Of one that changed an entry, which; of one among several,
-- their first and last.
local answers, entry_of, siblings_of = {}, {}, {}
local texts = {}

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

local function entry_at(key, limit)
  local entry = entries[key]
  if not entry then
    local state, problem, is_fresh = limit.decide.home.read(key, limit)
    entry = { key = key, state = state, problem = not state and problem, is_fresh = is_fresh }
    entries[key] = entry
  end
  entry.limit = limit
  return entry
end

local function change(entry, reset_after_us, spare_ms)
  if not entry.is_dirty then
    entry.is_dirty = true
    changed[#changed + 1] = entry
  end
  entry.is_fresh, entry.is_gone = false, false
  entry.reset_after_us, entry.spare_ms = reset_after_us, spare_ms
end

local function answer(status, remaining, reset_after_us, wait_us, place, fits)
  answers[#answers + 1] =
    struct_pack("<BI7I7I7I7I7", status, remaining, reset_after_us, wait_us, place, fits)
end

local function packed_failure(entry)
  texts[#texts + 1] = entry.problem .. "\n" .. entry.key
  return struct_pack("<BI7I7I7I7I7", FAILED, 0, 0, 0, 0, #texts)
end

local function answer_decision(
  is_allowed, remaining, retry_after_us, reset_after_us, delay_us, place, fits)
  if is_allowed then
    answer(ALLOWED, remaining, reset_after_us, delay_us, place or 0, fits or 0)
  elseif retry_after_us == NEVER then
    answer(NEVER_ALLOWED, remaining, reset_after_us, 0, 0, fits or 0)
  else
    answer(DENIED, remaining, reset_after_us, retry_after_us, 0, fits or 0)
  end
end

-- Whether what was decided shows that the state only looked like one.
local function is_corrupt(entry, remaining)
  if remaining <= entry.limit.size and not entry.state.is_corrupt then
    return false
  end
  entry.problem = CORRUPT
  return true
end

local function check(entry, limit, now_us, cost, max_wait_us, spare_ms)
  local state = entry.state
  local is_restarted = algorithm.is_new_clock(limit, state, now_us)
  local is_allowed, remaining, retry_after_us, reset_after_us, delay_us, place =
    algorithm.check(limit, state, now_us, cost, max_wait_us)
  if is_corrupt(entry, remaining) then
    answers[#answers + 1] = packed_failure(entry)
    return
  end
  answer_decision(is_allowed, remaining, retry_after_us, reset_after_us, delay_us, place)
  if is_allowed or is_restarted then
    change(entry, reset_after_us, spare_ms)
    entry_of[#answers] = entry
  end
end

local function peek(entry, limit, now_us, cost, max_wait_us)
  local is_allowed, remaining, retry_after_us, reset_after_us, delay_us =
    algorithm.peek(limit, entry.state, now_us, cost, max_wait_us)
  if is_corrupt(entry, remaining) then
    answers[#answers + 1] = packed_failure(entry)
    return
  end
  answer_decision(is_allowed, remaining, retry_after_us, reset_after_us, delay_us)
end

local function refund(entry, limit, now_us, cost, place, place_too, spare_ms)
  if entry.is_fresh then
    return answer(DONE, 0, 0, 0, 0, 0)
  end
  local back = algorithm.refund(limit, entry.state, now_us, cost, place, place_too)
  local _, standing = algorithm.look(limit, entry.state, now_us)
  if is_corrupt(entry, limit.decide.remaining(limit, standing)) then
    answers[#answers + 1] = packed_failure(entry)
    return
  end
  answer(DONE, back, 0, 0, 0, 0)
  change(entry, limit.decide.reset_after_us(limit, standing), spare_ms)
  entry_of[#answers] = entry
end

-- Needs no state that can be read: this is also how a corrupt one is got rid of.
local function reset(key, limit)
  local entry = entries[key] or { key = key }
  entries[key] = entry
  entry.limit, entry.state, entry.problem = limit, limit.decide.home.fresh(key, limit), false
  change(entry, 0, 0)
  entry.is_fresh, entry.is_gone = true, true
  answer(DONE, 0, 0, 0, 0, 0)
  entry_of[#answers] = entry
end

local function state(entry)
  texts[#texts + 1] = entry.is_fresh and "" or entry.limit.decide.home.packed(entry.state)
  answer(DONE, 0, 0, 0, 0, #texts)
end

-- Twin of check_all in together.rs, which also says what the answers come to together.
local function check_all(charges, now_us, spare_ms)
  local first, problem, is_refused = #answers + 1, nil, false
  for _, charge in ipairs(charges) do
    local entry, limit = charge.entry, charge.limit
    if not entry.problem then
      charge.is_restarted = algorithm.is_new_clock(limit, entry.state, now_us)
      algorithm.settle(limit, entry.state, now_us)
      charge.decided =
        { algorithm.peek(limit, entry.state, now_us, charge.cost, charge.max_wait_us) }
      is_refused = is_refused or (charge.role ~= SHADOW and not charge.decided[1])
      is_corrupt(entry, charge.decided[2])
    end
    problem = problem or (entry.problem and entry)
  end
  for _, charge in ipairs(charges) do
    local entry, limit, decided = charge.entry, charge.limit, charge.decided
    if problem then
      answers[#answers + 1] = packed_failure(problem)
    else
      local is_charged = not is_refused and decided[1]
      if is_charged then
        decided = { algorithm.check(limit, entry.state, now_us, charge.cost, charge.max_wait_us) }
      end
      if charge.max_wait_us then
        decided[7] = algorithm.fits(limit, entry.state, now_us, charge.cost, charge.max_wait_us)
      end
      answer_decision(unpack(decided, 1, 7))
      if is_charged or charge.is_restarted then
        change(entry, decided[4], spare_ms)
        entry_of[#answers] = entry
      end
    end
  end
  for index = first, #answers do
    siblings_of[index] = { first, #answers }
  end
end

-- ---- everything is read and decided

local limits = {}
for position = 1, #ARGV[1], 22 do
  limits[#limits + 1] = new_limit(struct_unpack("<BI7I7I7", ARGV[1], position))
end

local requests, position, key_at = ARGV[2], 1, 0
while position <= #requests do
  local what, count, at_us, limit_at, role, cost, a, b
  what, count, at_us, limit_at, role, cost, a, b, position =
    struct_unpack("<BI2I7I2BI7I7I7", requests, position)
  local is_callers = at_us < TWO_53
  local now_us = is_callers and at_us or server_us
  local spare_ms = is_callers and SPARE_OF_CALLERS_MS or SPARE_MS
  local limit = limits[limit_at]
  key_at = key_at + 1
  if what == RESET then
    reset(KEYS[key_at], limit)
  else
    local entry = entry_at(KEYS[key_at], limit)
    local max_wait_us = a < TWO_53 and a or nil
    if what == CHECK_ALL then
      local charges = {}
      for index = 1, count do
        if index > 1 then
          limit_at, role, cost, a, b, position = struct_unpack("<I2BI7I7I7", requests, position)
          limit, max_wait_us, key_at = limits[limit_at], a < TWO_53 and a or nil, key_at + 1
          entry = entry_at(KEYS[key_at], limit)
        end
        charges[index] = {
          entry = entry, limit = limit, role = role, cost = cost, max_wait_us = max_wait_us,
        }
      end
      check_all(charges, now_us, spare_ms)
    elseif entry.problem then
      answers[#answers + 1] = packed_failure(entry)
    elseif what == CHECK then
      check(entry, limit, now_us, cost, max_wait_us, spare_ms)
    elseif what == PEEK then
      peek(entry, limit, now_us, cost, max_wait_us)
    elseif what == REFUND then
      refund(entry, limit, now_us, cost, a, b, spare_ms)
    else
      state(entry)
    end
  end
end

-- ---- now it is written

local is_any_refused = false
for _, entry in ipairs(changed) do
  if not entry.problem then
    if entry.is_gone then
      redis.call("DEL", entry.key)
    else
      local ttl_ms = (entry.reset_after_us - entry.reset_after_us % 1000) / 1000 + entry.spare_ms
      entry.problem = entry.limit.decide.home.write(entry.key, entry.state, ttl_ms)
    end
  end
  is_any_refused = is_any_refused or entry.problem
end
if is_any_refused then
  for index, entry in pairs(entry_of) do
    if entry.problem then
      local siblings = siblings_of[index] or { index, index }
      for sibling = siblings[1], siblings[2] do
        answers[sibling] = packed_failure(entry)
      end
    end
  end
end

return { struct_pack("<I7", server_us) .. table.concat(answers), unpack(texts) }
