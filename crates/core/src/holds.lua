-- Holds: units of a key that are set aside until they are settled or expire. Twin of holds.rs and
-- algorithm/held.rs: change both, then run the tests in tests/twins. Load it after the algorithms.
--
-- Pure: no redis.call, and time is an argument. A time and a duration together may pass 2^53, so waits
-- are made of differences.
--
-- holds         a list of holds by expiry, the earliest first, then by id. A hold has
--                 id           a string of 8 bytes, the most significant first
--                 units        set aside; 0 if all have been charged by settlements in part
--                 expires_us   when it is charged
--                 used         the units that settlements in part have charged so far
-- reference     of a hold: its id, and expires_us, the last expiry granted for it
-- at_us         a key's own time: the caller's, unless that is behind the key's
-- taken         the units that are spent and held together
--
-- A hold at its expiry turns into a charge of the same units, so `taken` grows only when a request is
-- admitted, or is settled above its hold. A limit whose units are only held (decide.only_holds) charges
-- nothing: units that are settled, or whose hold expires, are free at once.
--
-- Example       local limit = token_bucket.new(10, 1, 1000000)
--               local state, holds = bucket.fresh(), {}
--               held.reserve(limit, state, holds, 0, "\0\0\0\0\0\0\0\1", 4, 60000000) is
--                 true, 6, nil, 64000000, 0, 61000000 and its expiry, 60000000
local held = {}
do
local MAX_HOLDS = 1024
local MAX_HOLD_US = 366 * 86400 * 1000000
local MAX_UNITS = TWO_53 - 1

local function is_before(hold, other)
  if hold.expires_us ~= other.expires_us then
    return hold.expires_us < other.expires_us
  end
  return hold.id < other.id
end

local function insert(holds, hold)
  local position = #holds + 1
  while position > 1 and is_before(hold, holds[position - 1]) do
    position = position - 1
  end
  table.insert(holds, position, hold)
end

local function find(holds, id)
  for position, hold in ipairs(holds) do
    if hold.id == id then
      return hold, position
    end
  end
end

-- The units of all holds from this position on.
local function units_from(holds, position)
  local units = 0
  for index = position, #holds do
    units = units + holds[index].units
  end
  return units
end

-- How many of the holds have expired at at_us.
local function expired_count(holds, at_us)
  for position, hold in ipairs(holds) do
    if hold.expires_us > at_us then
      return position - 1
    end
  end
  return #holds
end

-- Charges units at at_us, whether they fit or not. Returns the place of the charge; or nothing if nothing
-- is charged: for 0 units, and under a limit whose units are only held.
local function charge_anyway(limit, state, at_us, units)
  local decide = limit.decide
  if units == 0 or decide.only_holds then
    return
  end
  local standing = decide.charge(state, decide.standing(limit, state, at_us), units)
  return decide.place(limit, standing, at_us + decide.reset_after_us(limit, standing))
end

-- The wait from at_us until at most `most` units are spent if nothing more is charged. `most` is below
-- the size.
local function falls_to_after_us(limit, state, at_us, most)
  -- A request for the other `size - most` units waits exactly that long.
  local decide = limit.decide
  if decide.only_holds then
    return 0
  end
  local standing = decide.standing(limit, state, at_us)
  local _, _, wait_us = decide.verdict(limit, state, standing, limit.size - most)
  return wait_us or 0
end

-- A copy of the state with the first `count` holds charged.
local function with_expired(limit, state, holds, count)
  local copy = limit.decide.copy(state)
  for position = 1, count do
    charge_anyway(limit, copy, holds[position].expires_us, holds[position].units)
  end
  return copy
end

-- The functions for fixed windows, sliding window counters and concurrency limits. Logs and buckets have
-- their own below.
local beside = {}

-- The units spent at at_us, including the units of the first `count` holds, which have expired.
function beside.spent_with(limit, state, holds, count, at_us)
  local copy = with_expired(limit, state, holds, count)
  return limit.decide.spent(limit.decide.standing(limit, copy, at_us))
end

-- The wait from at_us until at most `most` units are taken, if nothing else arrives and the holds are left
-- to expire.
function beside.falls_after_us(limit, state, holds, count, at_us, most)
  local copy, from_us = with_expired(limit, state, holds, count), at_us
  local units = units_from(holds, count + 1)
  for position = count + 1, #holds do
    local hold = holds[position]
    if units <= most then
      local wait_us = falls_to_after_us(limit, copy, from_us, most - units)
      if wait_us <= hold.expires_us - from_us then
        return from_us - at_us + wait_us
      end
    end
    charge_anyway(limit, copy, hold.expires_us, hold.units)
    units, from_us = units - hold.units, hold.expires_us
  end
  return from_us - at_us + falls_to_after_us(limit, copy, from_us, most)
end

-- The most units that a key may have taken.
function beside.most_taken()
  return MAX_UNITS
end

-- A log is not copied. It need not be, because a hold expires after every charge in the log, and its charge
-- leaves one window after the expiry: the log's own charges leave first, and then the holds in order.
local beside_log = {}

-- The wait until a charge made at charged_us has left; 0 or less if it has.
local function leaves_in_us(limit, charged_us, at_us)
  return limit.window_us - (at_us - charged_us)
end

function beside_log.spent_with(limit, log, holds, count, at_us)
  local units = 0
  for position = 1, count do
    if leaves_in_us(limit, holds[position].expires_us, at_us) > 0 then
      units = units + holds[position].units
    end
  end
  return limit.decide.standing(limit, log, at_us).spent + units
end

function beside_log.falls_after_us(limit, log, holds, count, at_us, most)
  local own = limit.decide.standing(limit, log, at_us).spent
  local taken = beside_log.spent_with(limit, log, holds, count, at_us)
  local must_leave = taken + units_from(holds, count + 1) - most
  if own >= must_leave then
    return falls_to_after_us(limit, log, at_us, own - must_leave)
  end
  must_leave = must_leave - own
  for _, hold in ipairs(holds) do
    local wait_us = leaves_in_us(limit, hold.expires_us, at_us)
    if wait_us > 0 then
      must_leave = must_leave - hold.units
      if must_leave <= 0 then
        return wait_us
      end
    end
  end
  return 0
end

function beside_log.most_taken()
  return MAX_UNITS
end

function beside_log.store_standing(limit, log, at_us)
  local standing = limit.decide.standing(limit, log, at_us)
  sliding_window_log.forget(log, standing.counting)
  log.charged_us = standing.at_us
end

local beside_bucket = {
  spent_with = beside.spent_with, falls_after_us = beside.falls_after_us,
}

-- The units of as many full buckets as drain in the longest exact wait: 2^53 us, less the 366 days after which
-- the last hold has expired, and less a step back of the clock. At least two buckets, because each drains within
-- 100 years.
function beside_bucket.most_taken(limit)
  local longest_us = MAX_TIME_US - MAX_HOLD_US - MAX_STEP_BACK_US
  if limit.size / limit.rate_units * limit.per_us > longest_us * 1.0001 then
    -- A limit this slow exists only while a key stays under its old limit, which then has a larger size.
    return 0
  end
  local full_us = max(bucket.drain_time_us(limit, limit.size, 0), 1)
  -- OK because a product that passes 2^53 may round, but not to below 2^53.
  return min(limit.size * ((longest_us - longest_us % full_us) / full_us), MAX_UNITS)
end

local function beside_of(limit)
  if limit.time_to_full_us then
    return beside_bucket
  end
  return limit.decide == sliding_window_log and beside_log or beside
end

-- Stores the key's standing at at_us as its state, so that its floor moves forward too.
local function store_standing(limit, state, at_us)
  local own = beside_of(limit).store_standing
  if own then
    return own(limit, state, at_us)
  end
  local decide = limit.decide
  decide.charge(state, decide.standing(limit, state, at_us), 0)
end

-- Called after each operation that changed the key, with the holds that are left.
local function after_change(limit, state, holds)
  if limit.decide.after_change then
    limit.decide.after_change(state, holds)
  end
end

-- The key's own time.
local function key_time_us(limit, state, now_us)
  return max(min(now_us, MAX_TIME_US), limit.decide.floor_us(state))
end

-- A key with holds at one instant. The state does not have the charges of the expired holds yet.
local function view(limit, state, holds, now_us)
  local at_us = key_time_us(limit, state, now_us)
  local count = expired_count(holds, at_us)
  local units = units_from(holds, count + 1)
  local spent = beside_of(limit).spent_with(limit, state, holds, count, at_us)
  return {
    limit = limit, state = state, holds = holds, expired = count, at_us = at_us,
    now_us = min(now_us, MAX_TIME_US), held = units, taken = spent + units,
  }
end

local function falls_after_us(seen, most)
  if seen.taken <= most then
    return 0
  end
  local limit = seen.limit
  local wait_us = beside_of(limit).falls_after_us(
    limit, seen.state, seen.holds, seen.expired, seen.at_us, most)
  return seen.at_us - seen.now_us + wait_us
end

-- Returns is_allowed, and retry_after_us when denied.
local function verdict_on_units(seen, cost)
  local most = seen.limit.size - cost
  if most < 0 then
    return false, NEVER
  elseif seen.taken <= most then
    return true
  end
  return false, falls_after_us(seen, most)
end

-- The verdict on a check, which needs units that can be charged. Under a limit whose units are only held a
-- check is always denied. It can be a check of another limit, to which the key moves once enough holds
-- have ended.
local function verdict_on_check(seen, cost)
  local is_allowed, wait_us = verdict_on_units(seen, cost)
  if not seen.limit.decide.only_holds or not is_allowed then
    return is_allowed, wait_us
  end
  local last = #seen.holds > seen.expired and seen.holds[#seen.holds]
  return false, last and last.expires_us - seen.now_us or NEVER
end

-- The verdict on one more hold. A key that has MAX_HOLDS open holds waits for the first to expire.
local function verdict_on_hold(seen, cost)
  local is_allowed, wait_us = verdict_on_units(seen, cost)
  if #seen.holds - seen.expired < MAX_HOLDS then
    return is_allowed, wait_us
  end
  local by_number_us = seen.holds[seen.expired + 1].expires_us - seen.now_us
  return false, max(wait_us or 0, by_number_us)
end

-- Returns the same values as `algorithm.peek`.
local function decision(seen, is_allowed, retry_after_us)
  local size, first_back_us = seen.limit.size, 0
  local left = min(seen.taken, size)
  if left > 0 then
    first_back_us = falls_after_us(seen, left - 1)
  end
  return is_allowed, max(size - seen.taken, 0), retry_after_us, falls_after_us(seen, 0), 0,
    first_back_us
end

-- Moves a key with holds to a new clock if now_us shows one. Expiries move with it.
local function restart_clock(limit, state, holds, now_us)
  now_us = min(now_us, MAX_TIME_US)
  local back_us = limit.decide.floor_us(state) - now_us
  if back_us > MAX_STEP_BACK_US then
    limit.decide.restart(limit, state, now_us)
    state.is_restarted = true
    for _, hold in ipairs(holds) do
      hold.expires_us = max(hold.expires_us - back_us, 0)
    end
  end
end

local function copied(holds)
  local copy = {}
  for position, hold in ipairs(holds) do
    copy[position] =
      { id = hold.id, units = hold.units, expires_us = hold.expires_us, used = hold.used }
  end
  return copy
end

-- The view of the key at now_us; of a restarted copy if now_us shows a new clock.
local function look(limit, state, holds, now_us)
  if limit.decide.floor_us(state) - min(now_us, MAX_TIME_US) > MAX_STEP_BACK_US then
    state, holds = limit.decide.copy(state), copied(holds)
    restart_clock(limit, state, holds, now_us)
  end
  return view(limit, state, holds, now_us)
end

-- Charges the holds that have expired at now_us, and stores the key's standing as its state. Returns the key's time.
-- Only for an operation that changes the state: a refusal must leave no trace.
local function bring_up(limit, state, holds, now_us)
  local at_us = key_time_us(limit, state, now_us)
  for _ = 1, expired_count(holds, at_us) do
    local hold = table.remove(holds, 1)
    charge_anyway(limit, state, hold.expires_us, hold.units)
  end
  store_standing(limit, state, at_us)
  return at_us
end

-- Returns the decision that an admitted operation reports: what remains after it.
local function decision_after(limit, state, holds, now_us)
  return decision(look(limit, state, holds, now_us), true)
end

-- Finds a hold that is open. Returns it and its position; or nil and why it is not, "expired" or "unknown".
local function find_open(limit, state, holds, now_us, id, expires_us)
  local at_us = key_time_us(limit, state, now_us)
  local hold, position = find(holds, id)
  if hold then
    expires_us = hold.expires_us
  end
  if expires_us <= at_us then
    return nil, "expired"
  end
  return hold, hold and position or "unknown"
end

-- Decides a check and charges nothing; a reservation, if the limit's units are only held. Returns the same
-- values as `algorithm.peek`.
function held.peek(limit, state, holds, now_us, cost)
  local seen = look(limit, state, holds, now_us)
  if limit.decide.only_holds then
    return decision(seen, verdict_on_hold(seen, cost))
  end
  return decision(seen, verdict_on_check(seen, cost))
end

-- Decides whether more units fit a hold. Returns the same values as `algorithm.peek`.
function held.peek_units(limit, state, holds, now_us, cost)
  local seen = look(limit, state, holds, now_us)
  return decision(seen, verdict_on_units(seen, cost))
end

-- Decides a reservation and holds nothing. Returns the same values as `algorithm.peek`.
function held.peek_reserve(limit, state, holds, now_us, cost)
  local seen = look(limit, state, holds, now_us)
  return decision(seen, verdict_on_hold(seen, cost))
end

-- Decides a check, and charges it if it is allowed. Returns a decision, and its place.
function held.check(limit, state, holds, now_us, cost)
  restart_clock(limit, state, holds, now_us)
  local seen = look(limit, state, holds, now_us)
  if not verdict_on_check(seen, cost) then
    return decision(seen, verdict_on_check(seen, cost))
  end
  local at_us = bring_up(limit, state, holds, now_us)
  local place, place_too = charge_anyway(limit, state, at_us, cost)
  local is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us =
    decision_after(limit, state, holds, now_us)
  return is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us,
    place, place_too
end

-- Decides a reservation, and sets the units aside if it is admitted. Returns a decision, and the expiry.
function held.reserve(limit, state, holds, now_us, id, cost, hold_for_us)
  restart_clock(limit, state, holds, now_us)
  local seen = look(limit, state, holds, now_us)
  if not verdict_on_hold(seen, cost) then
    return decision(seen, verdict_on_hold(seen, cost))
  end
  local at_us = bring_up(limit, state, holds, now_us)
  local expires_us = min(at_us + hold_for_us, MAX_TIME_US)
  insert(holds, { id = id, units = cost, expires_us = expires_us, used = 0 })
  local is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us =
    decision_after(limit, state, holds, now_us)
  return is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us, expires_us
end

-- Charges the used units of a hold. `used` includes the units of earlier settlements. The hold ends if is_last.
-- Returns "done", the units charged, how many of them beyond the hold, the units cut, and the place of the
-- charge; or why the hold is not open, "expired" or "unknown".
function held.settle(limit, state, holds, now_us, id, expires_us, used, is_last)
  restart_clock(limit, state, holds, now_us)
  local open, ended = find_open(limit, state, holds, now_us, id, expires_us)
  if not open then
    return ended
  end
  local at_us = bring_up(limit, state, holds, now_us)
  local taken = view(limit, state, holds, at_us).taken
  local newly_used = max(used - open.used, 0)
  local within = min(newly_used, open.units)
  local beyond = newly_used - within
  local room = max(beside_of(limit).most_taken(limit) - taken, 0)
  local excess = min(beyond, limit.size, room)
  if is_last then
    local _, position = find(holds, id)
    table.remove(holds, position)
  else
    open.units, open.used = open.units - within, max(open.used, used)
  end
  if limit.decide.only_holds then
    after_change(limit, state, holds)
    return "done", 0, 0, 0
  end
  return "done", within + excess, excess, beyond - excess,
    charge_anyway(limit, state, at_us, within + excess)
end

-- Adds `more` units to a hold if they fit, and moves its expiry to hold_for_us from now; 0 units always fit.
-- Returns "granted" and the expiry, "refused", or why the hold is not open, "expired" or "unknown".
function held.extend(limit, state, holds, now_us, id, expires_us, more, hold_for_us)
  restart_clock(limit, state, holds, now_us)
  local open, ended = find_open(limit, state, holds, now_us, id, expires_us)
  if not open then
    return ended
  elseif more > 0 and not verdict_on_units(look(limit, state, holds, now_us), more) then
    return "refused"
  end
  local at_us = bring_up(limit, state, holds, now_us)
  local _, position = find(holds, id)
  table.remove(holds, position)
  open.units, open.expires_us = open.units + more, min(at_us + hold_for_us, MAX_TIME_US)
  insert(holds, open)
  return "granted", open.expires_us
end

-- The decision that a settlement or an extension reports. Returns the same values as `algorithm.peek`.
function held.decision_after(limit, state, holds, now_us, is_allowed)
  return decision(look(limit, state, holds, now_us), is_allowed, not is_allowed and NEVER or nil)
end

-- Gives back the part of a charge that still counts. Returns by how much `remaining` grew.
function held.refund(limit, state, holds, now_us, cost, place, place_too)
  if limit.decide.only_holds then
    return 0
  end
  restart_clock(limit, state, holds, now_us)
  local at_us = bring_up(limit, state, holds, now_us)
  local before = max(limit.size - view(limit, state, holds, at_us).taken, 0)
  limit.decide.give_back(limit, state, at_us, cost, place, place_too)
  return max(max(limit.size - view(limit, state, holds, at_us).taken, 0) - before, 0)
end

-- Moves a key with holds to another limit, as `algorithm.carry_over` does. The holds stay as they are.
function held.carry_over(limit, old, state, holds, now_us, cost)
  now_us = min(now_us, MAX_TIME_US)
  local seen = look(old, state, holds, now_us)
  local has_open = #seen.holds > seen.expired
  if limit.is_shaping and old.decide.only_holds and has_open then
    -- At this size the old limit has room for the request when nothing is held any more, or never if the
    -- request does not fit this limit.
    return nil, algorithm.with_size(old, min(limit.size, cost)), state
  end
  local spent = min(seen.taken - seen.held, MAX_UNITS)
  if not algorithm.takes_over(limit, old, spent, seen.held + cost) then
    return nil, algorithm.with_size(old, limit.size), state
  end
  -- A hold that is far larger than a slow bucket would take longer to drain than can be computed.
  if limit.is_shaping and has_open or seen.taken > beside_of(limit).most_taken(limit) then
    return nil, algorithm.with_size(old, min(limit.size, old.size)), state
  end
  restart_clock(old, state, holds, now_us)
  local at_us = bring_up(old, state, holds, now_us)
  if limit.decide.only_holds and #holds > 0 then
    return true, limit, { at_us = at_us }
  end
  return true, limit, algorithm.carried(limit, old, state, spent, now_us)
end
end
