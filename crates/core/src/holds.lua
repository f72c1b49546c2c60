-- Holds: units of a key that are set aside until they are settled or expire. Twin of holds.rs and
-- algorithm/held.rs: change both, then run the tests in tests/twins. Load it after the algorithms.
--
-- Pure: no redis.call, and time is an argument. A time and a duration together may pass 2^53, so waits
-- are made of differences.
--
-- holds         the holds of a key, by expiry, the earliest first, then by id; `count` of them. From 1 on,
--               units[i]     set aside; 0 if all have been charged by settlements in part
--               expires[i]   when the hold is charged
--               The script that makes the holds stores their ids, and the units that settlements in part
--               have charged so far, and gives the holds these methods:
--                 holds:find(id)           the position of a hold, nil if it is not listed
--                 holds:id(i)              a string of 8 bytes, the most significant first
--                 holds:used(i)            the units charged so far
--                 holds:insert(i, id, units, expires_us, used)
--                 holds:set(i, units, used)
--                 holds:remove(i)
--                 holds:drop(count)        removes the first ones
--                 holds:move_back(back_us) makes every expiry earlier, at 0 at the earliest
-- reference     of a hold: its id, and expires_us, the last expiry granted for it
-- at_us         a key's own time: the caller's, unless that is behind the key's
-- taken         the units that are spent and held together
--
-- A hold at its expiry turns into a charge of the same units, so `taken` grows only when a request is
-- admitted, or is settled above its hold. A limit whose units are only held (decide.only_holds) charges
-- nothing: units that are settled, or whose hold expires, are free at once.
--
-- A key may have 1,024 holds, so each function passes over them as seldom as it can.
--
-- Example       local limit = token_bucket.new(10, 1, 1000000)
--               local state, holds = bucket.fresh(), (no holds)
--               held.reserve(limit, state, holds, 0, "\0\0\0\0\0\0\0\1", 4, 60000000) is
--                 true, 6, nil, 64000000, 0, 61000000 and its expiry, 60000000
local held = {}
do
local MAX_HOLDS = 1024
local MAX_HOLD_US = 366 * 86400 * 1000000
local MAX_UNITS = TWO_53 - 1

-- Returns the position at which a hold is inserted.
local function position_for(holds, id, expires_us)
  local expires, position = holds.expires, holds.count + 1
  while position > 1 do
    local before_us = expires[position - 1]
    if before_us < expires_us or (before_us == expires_us and holds:id(position - 1) < id) then
      break
    end
    position = position - 1
  end
  return position
end

-- The units of all holds from this position on.
local function units_from(holds, position)
  local units, all = 0, holds.units
  for index = position, holds.count do
    units = units + all[index]
  end
  return units
end

-- How many of the holds have expired at at_us.
local function expired_count(holds, at_us)
  local expires, count = holds.expires, 0
  while count < holds.count and expires[count + 1] <= at_us do
    count = count + 1
  end
  return count
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

-- For each limit but the log: the units spent at a time not before the key's, and what is needed to
-- charge more at that time; and the charge. They do what `standing` and `charge` do, without a table.
local steps = {
  [concurrency] = {
    spent_at = function()
      return 0
    end,
    charge_at = function() end,
  },
}

if fixed_window then
  steps[fixed_window] = {
    spent_at = function(limit, window, at_us)
      if at_us - window.start_us < limit.window_us then
        return window.spent, window.start_us
      end
      return 0, at_us - at_us % limit.window_us
    end,
    charge_at = function(window, _, units, spent, start_us)
      window.start_us, window.spent = start_us, spent + units
    end,
  }
end

if sliding_window_counter then
  steps[sliding_window_counter] = {
    spent_at = function(limit, windows, at_us)
      local window_us, start_us = limit.window_us, windows.start_us
      local current, previous = windows.current, windows.previous
      if at_us - start_us >= window_us then
        local next_us = at_us - at_us % window_us
        previous = next_us - start_us == window_us and current or 0
        start_us, current = next_us, 0
      end
      if previous == 0 then
        return current, start_us, current, previous
      end
      local in_view = muldiv(previous, window_us - (at_us - start_us), window_us)
      return current + in_view, start_us, current, previous
    end,
    charge_at = function(windows, _, units, _, start_us, current, previous)
      windows.start_us, windows.current, windows.previous = start_us, current + units, previous
    end,
  }
end

if bucket then
  steps[bucket] = {
    spent_at = function(limit, fill, at_us)
      local units, fraction = fill.units, fill.fraction
      if units == 0 and fraction == 0 then
        return 0, 0, 0
      end
      -- As bucket.drained, with fewer calls where no product passes 2^53.
      local elapsed_us = at_us - fill.as_of_us
      local parts = elapsed_us * limit.rate_units
      if parts >= TWO_53 then
        units, fraction = bucket.drained(limit, units, fraction, elapsed_us)
        return fraction > 0 and units + 1 or units, units, fraction
      end
      local per_us = limit.per_us
      local gone_fraction = parts % per_us
      local gone = (parts - gone_fraction) / per_us
      if fraction < gone_fraction then
        gone, fraction = gone + 1, fraction + per_us
      end
      if units < gone then
        return 0, 0, 0
      end
      units, fraction = units - gone, fraction - gone_fraction
      return fraction > 0 and units + 1 or units, units, fraction
    end,
    charge_at = function(fill, at_us, more, _, units, fraction)
      fill.units, fill.fraction, fill.as_of_us = units + more, fraction, at_us
      fill.charged = (fill.charged - TWO_53 + more) % TWO_53
    end,
  }
end

-- Charges the first `count` holds to the state, each at its expiry.
local function charge_expired(limit, state, holds, count)
  local step = steps[limit.decide]
  local spent_at, charge_at = step.spent_at, step.charge_at
  local all, expires = holds.units, holds.expires
  for position = 1, count do
    local units, expires_us = all[position], expires[position]
    if units > 0 then
      charge_at(state, expires_us, units, spent_at(limit, state, expires_us))
    end
  end
end

-- The functions for all limits but the log, which has its own below.
local beside = {}

-- Adds to a view the units that are spent, including the expired holds.
function beside.look(seen)
  local limit = seen.limit
  if seen.expired > 0 then
    seen.state = limit.decide.copy(seen.state)
    charge_expired(limit, seen.state, seen.holds, seen.expired)
  end
  -- Where falls_after_us goes on: the state at ahead_us (false: not copied yet), the first open hold, the units held.
  seen.ahead, seen.ahead_us, seen.next, seen.left = false, seen.at_us, seen.expired + 1, seen.held
  return (steps[limit.decide].spent_at(limit, seen.state, seen.at_us))
end

-- The wait from at_us until at most `most` units are taken, if nothing else arrives and the holds are left
-- to expire. `most` is not larger than in the calls before: each call continues where the last one ended.
function beside.falls_after_us(seen, most)
  local limit, holds = seen.limit, seen.holds
  local step = steps[limit.decide]
  local spent_at, charge_at = step.spent_at, step.charge_at
  local state, from_us, position, left = seen.ahead, seen.ahead_us, seen.next, seen.left
  local all, expires, count = holds.units, holds.expires, holds.count
  if not state then
    state = limit.decide.copy(seen.state)
  end
  while position <= count do
    local expires_us, units = expires[position], all[position]
    local spent, one, two, three = spent_at(limit, state, expires_us)
    if spent + left <= most then
      break
    end
    if units > 0 then
      charge_at(state, expires_us, units, spent, one, two, three)
    end
    left, from_us, position = left - units, expires_us, position + 1
  end
  seen.ahead, seen.ahead_us, seen.next, seen.left = state, from_us, position, left
  return from_us - seen.at_us + falls_to_after_us(limit, state, from_us, most - left)
end

-- The most units that a key may have taken.
function beside.most_taken()
  return MAX_UNITS
end

-- Charges the first `count` holds to the state. An operation that changes the state does this first.
function beside.charge_expired(limit, state, holds, count)
  charge_expired(limit, state, holds, count)
end

-- Stores the key's standing at at_us as its state, so that its floor moves forward too.
function beside.store_standing(limit, state, at_us)
  local decide = limit.decide
  decide.charge(state, decide.standing(limit, state, at_us), 0)
end

-- A log need not be copied. A hold expires no earlier than the newest charge in the log, and its charge leaves one
-- window after the expiry. So the log's own charges leave first, and then the holds in order.
local beside_log = { most_taken = beside.most_taken, most_units = 65536 }

function beside_log.look(seen)
  local limit, holds = seen.limit, seen.holds
  -- An expired hold that counts was charged within the last window.
  local position = seen.expired
  local all, expires, units = holds.units, holds.expires, 0
  while position > 0 and limit.window_us - (seen.at_us - expires[position]) > 0 do
    units, position = units + all[position], position - 1
  end
  seen.own = limit.decide.standing(limit, seen.state, seen.at_us).spent
  -- For falls_after_us: `next` is the first hold whose units have not left, and `before` counts the units of the
  -- counting holds before it.
  seen.next, seen.before = position + 1, 0
  return seen.own + units
end

function beside_log.falls_after_us(seen, most)
  local limit, own = seen.limit, seen.own
  local must_leave = seen.taken - most
  if own >= must_leave then
    return falls_to_after_us(limit, seen.state, seen.at_us, own - must_leave)
  end
  local holds, position, left = seen.holds, seen.next, must_leave - own - seen.before
  local all, before = holds.units, seen.before
  -- Positive, because more units are held from `next` on than must leave.
  while left > all[position] do
    left, before, position = left - all[position], before + all[position], position + 1
  end
  seen.next, seen.before = position, before
  return limit.window_us - (seen.at_us - holds.expires[position])
end

-- The charges that have left are dropped later, by store_standing.
function beside_log.charge_expired(_, log, holds, count)
  local through = log.base
  if log.count > 0 then
    local _, newest = log:read(log.count - 1)
    through = newest
  end
  for position = 1, count do
    if holds.units[position] > 0 then
      through = through + holds.units[position]
      log.charged_us = holds.expires[position]
      log:append(log.charged_us, through)
    end
  end
end

function beside_log.store_standing(limit, log, at_us)
  local standing = limit.decide.standing(limit, log, at_us)
  sliding_window_log.forget(log, standing.counting)
  log.charged_us = standing.at_us
end

local beside_bucket = {
  look = beside.look, falls_after_us = beside.falls_after_us,
  charge_expired = beside.charge_expired, store_standing = beside.store_standing,
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

-- Called after each operation that ended a hold, with the holds that are left.
local function after_change(limit, state, holds)
  if limit.decide.after_change then
    limit.decide.after_change(state, holds)
  end
end

-- The key's own time.
local function key_time_us(limit, state, now_us)
  return max(min(now_us, MAX_TIME_US), limit.decide.floor_us(state))
end

-- A key with holds at one instant. The key's state does not have the charges of the expired holds yet.
local function view(limit, state, holds, now_us)
  local at_us = key_time_us(limit, state, now_us)
  local expired = expired_count(holds, at_us)
  local seen = {
    limit = limit, state = state, holds = holds, expired = expired, at_us = at_us,
    now_us = min(now_us, MAX_TIME_US), held = units_from(holds, expired + 1), taken = 0,
  }
  seen.taken = beside_of(limit).look(seen) + seen.held
  return seen
end

-- The wait until at most `most` units are taken. `most` is not larger than in the calls before.
local function falls_after_us(seen, most)
  if seen.taken <= most then
    return 0
  end
  local wait_us = beside_of(seen.limit).falls_after_us(seen, most)
  return seen.at_us - seen.now_us + wait_us
end

local function fits(seen, cost)
  return seen.taken <= seen.limit.size - cost
end

-- Whether one more hold fits. A key that has MAX_HOLDS open holds waits for the first to expire.
local function fits_as_hold(seen, cost)
  return fits(seen, cost) and seen.holds.count - seen.expired < MAX_HOLDS
end

-- Returns the same values as `algorithm.peek`. `cost` is that of a denied request, NEVER if waiting cannot
-- help, and least_us a time that it has to wait in any case.
local function decision(seen, is_allowed, cost, least_us)
  local size, first_back_us, retry_after_us = seen.limit.size, 0, nil
  local left = min(seen.taken, size)
  if left > 0 then
    first_back_us = falls_after_us(seen, left - 1)
  end
  if not is_allowed and cost > size then
    retry_after_us = NEVER
  elseif not is_allowed then
    retry_after_us = max(falls_after_us(seen, size - cost), least_us or 0)
  end
  return is_allowed, max(size - seen.taken, 0), retry_after_us, falls_after_us(seen, 0), 0,
    first_back_us
end

local function decision_on_units(seen, cost)
  return decision(seen, fits(seen, cost), cost)
end

-- The decision on a check, which needs units that can be charged. Under a limit whose units are only held a
-- check is always denied. It can be a check of another limit, to which the key moves once enough holds
-- have ended.
local function decision_on_check(seen, cost)
  if not seen.limit.decide.only_holds or not fits(seen, cost) then
    return decision_on_units(seen, cost)
  end
  local holds = seen.holds
  local last_us = holds.count > seen.expired and holds.expires[holds.count]
  return decision(seen, false, cost, last_us and last_us - seen.now_us or NEVER)
end

local function decision_on_hold(seen, cost)
  local least_us = 0
  if seen.holds.count - seen.expired >= MAX_HOLDS then
    least_us = seen.holds.expires[seen.expired + 1] - seen.now_us
  end
  return decision(seen, fits_as_hold(seen, cost), cost, least_us)
end

-- Moves a key with holds to a new clock if now_us shows one. Expiries move with it.
local function restart_clock(limit, state, holds, now_us)
  now_us = min(now_us, MAX_TIME_US)
  local back_us = limit.decide.floor_us(state) - now_us
  if back_us > MAX_STEP_BACK_US then
    limit.decide.restart(limit, state, now_us)
    state.is_restarted = true
    holds:move_back(back_us)
  end
end

-- The view of the key at now_us; of a restarted copy if now_us shows a new clock.
local function look(limit, state, holds, now_us)
  local back_us = limit.decide.floor_us(state) - min(now_us, MAX_TIME_US)
  if back_us <= MAX_STEP_BACK_US then
    return view(limit, state, holds, now_us)
  end
  local copy = limit.decide.copy(state)
  limit.decide.restart(limit, copy, min(now_us, MAX_TIME_US))
  local expires = {}
  for position = 1, holds.count do
    expires[position] = max(holds.expires[position] - back_us, 0)
  end
  local moved = { count = holds.count, units = holds.units, expires = expires }
  return view(limit, copy, moved, now_us)
end

-- Charges the holds that have expired at now_us, and stores the key's standing as its state. Returns the key's
-- time, and how many holds were charged.
-- Only for an operation that changes the state: a refusal must leave no trace.
local function bring_up(limit, state, holds, now_us)
  local at_us = key_time_us(limit, state, now_us)
  local count = expired_count(holds, at_us)
  if count > 0 then
    beside_of(limit).charge_expired(limit, state, holds, count)
    holds:drop(count)
  end
  beside_of(limit).store_standing(limit, state, at_us)
  return at_us, count
end

-- Returns the decision that an admitted operation reports: what remains after it.
local function decision_after(limit, state, holds, now_us)
  return decision(look(limit, state, holds, now_us), true)
end

-- Finds a hold that is open. Returns its position; or nil and why it is not, "expired" or "unknown".
local function find_open(limit, state, holds, now_us, id, expires_us)
  local at_us = key_time_us(limit, state, now_us)
  local position = holds:find(id)
  if position then
    expires_us = holds.expires[position]
  end
  if expires_us <= at_us then
    return nil, "expired"
  end
  return position, "unknown"
end

held.restart_clock = restart_clock

-- The most units that a key may have spent and held together.
function held.most_taken(limit)
  return beside_of(limit).most_taken(limit)
end

-- Decides a check and charges nothing; a reservation, if the limit's units are only held. Returns the same
-- values as `algorithm.peek`.
function held.peek(limit, state, holds, now_us, cost)
  local seen = look(limit, state, holds, now_us)
  if limit.decide.only_holds then
    return decision_on_hold(seen, cost)
  end
  return decision_on_check(seen, cost)
end

-- Decides whether more units fit a hold. Returns the same values as `algorithm.peek`.
function held.peek_units(limit, state, holds, now_us, cost)
  return decision_on_units(look(limit, state, holds, now_us), cost)
end

-- Decides a reservation and holds nothing. Returns the same values as `algorithm.peek`.
function held.peek_reserve(limit, state, holds, now_us, cost)
  return decision_on_hold(look(limit, state, holds, now_us), cost)
end

-- Charges a check if it fits. Returns the view of the key before, whether it fits, and the place of its charge.
local function charge_check(limit, state, holds, now_us, cost)
  local seen = look(limit, state, holds, now_us)
  if limit.decide.only_holds or not fits(seen, cost) then
    return seen, false
  end
  local at_us = bring_up(limit, state, holds, now_us)
  return seen, true, charge_anyway(limit, state, at_us, cost)
end

-- Decides a check, and charges it if it is allowed. Returns a decision, and its place.
function held.check(limit, state, holds, now_us, cost)
  restart_clock(limit, state, holds, now_us)
  local seen, is_charged, place, place_too = charge_check(limit, state, holds, now_us, cost)
  if not is_charged then
    return decision_on_check(seen, cost)
  end
  local is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us =
    decision_after(limit, state, holds, now_us)
  return is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us,
    place, place_too
end

-- Decides a reservation, and sets the units aside if it is admitted. Returns a decision, and the expiry.
function held.reserve(limit, state, holds, now_us, id, cost, hold_for_us)
  restart_clock(limit, state, holds, now_us)
  local seen = look(limit, state, holds, now_us)
  if not fits_as_hold(seen, cost) then
    return decision_on_hold(seen, cost)
  end
  local at_us = bring_up(limit, state, holds, now_us)
  local expires_us = min(at_us + hold_for_us, MAX_TIME_US)
  holds:insert(position_for(holds, id, expires_us), id, cost, expires_us, 0)
  local is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us =
    decision_after(limit, state, holds, now_us)
  return is_allowed, remaining, retry_after_us, reset_after_us, delay_us, first_back_us, expires_us
end

-- Charges the used units of a hold. `used` includes the units of earlier settlements. The hold ends if is_last.
-- Returns "done", the units charged, how many of them beyond the hold, the units cut, the units of the hold that
-- are not held any more, and the place of the charge; or why the hold is not open, "expired" or "unknown".
function held.settle(limit, state, holds, now_us, id, expires_us, used, is_last)
  restart_clock(limit, state, holds, now_us)
  local open, ended = find_open(limit, state, holds, now_us, id, expires_us)
  if not open then
    return ended
  end
  local at_us, dropped = bring_up(limit, state, holds, now_us)
  open = open - dropped
  local units, used_before = holds.units[open], holds:used(open)
  local taken = view(limit, state, holds, at_us).taken
  local newly_used = max(used - used_before, 0)
  local within = min(newly_used, units)
  local beyond = newly_used - within
  local room = max(beside_of(limit).most_taken(limit) - taken, 0)
  local excess = min(beyond, limit.size, room)
  local freed = is_last and units or within
  if is_last then
    holds:remove(open)
  else
    holds:set(open, units - within, max(used_before, used))
  end
  if limit.decide.only_holds then
    after_change(limit, state, holds)
    return "done", 0, 0, 0, freed
  end
  return "done", within + excess, excess, beyond - excess, freed,
    charge_anyway(limit, state, at_us, within + excess)
end

-- Decides an extension and changes nothing. Returns "granted", "refused", or why the hold is not open, "expired"
-- or "unknown".
function held.peek_extend(limit, state, holds, now_us, id, expires_us, more)
  local open, ended = find_open(limit, state, holds, now_us, id, expires_us)
  if not open then
    return ended
  elseif more > 0 and not fits(look(limit, state, holds, now_us), more) then
    return "refused"
  end
  return "granted"
end

-- Makes an extension that was decided as granted. Returns the expiry, and the units that the hold has now.
function held.grow(limit, state, holds, now_us, id, more, hold_for_us)
  local at_us = bring_up(limit, state, holds, now_us)
  local open = holds:find(id)
  local units, used = holds.units[open], holds:used(open)
  holds:remove(open)
  local expires_us = min(at_us + hold_for_us, MAX_TIME_US)
  holds:insert(position_for(holds, id, expires_us), id, units + more, expires_us, used)
  return expires_us, units + more
end

-- Adds `more` units to a hold if they fit, and moves its expiry to hold_for_us from now; 0 units always fit.
-- Returns "granted", the expiry and the units that the hold has now; "refused"; or why the hold is not open, "expired"
-- or "unknown".
function held.extend(limit, state, holds, now_us, id, expires_us, more, hold_for_us)
  restart_clock(limit, state, holds, now_us)
  local extension = held.peek_extend(limit, state, holds, now_us, id, expires_us, more)
  if extension ~= "granted" then
    return extension
  end
  return extension, held.grow(limit, state, holds, now_us, id, more, hold_for_us)
end

-- Takes an extension back: removes `less` units from a hold, and moves its expiry from granted_us, which the extension
-- set, back to expires_us. The expiry stays if the hold was extended again meanwhile, or if expires_us has passed.
-- Returns "granted", the expiry and the units that the hold has now; or why the hold is not open, "expired" or "unknown".
function held.take_back(limit, state, holds, now_us, id, expires_us, less, granted_us)
  restart_clock(limit, state, holds, now_us)
  local open, ended = find_open(limit, state, holds, now_us, id, expires_us)
  if not open then
    return ended
  end
  local at_us, dropped = bring_up(limit, state, holds, now_us)
  open = open - dropped
  local units, used, until_us = holds.units[open], holds:used(open), holds.expires[open]
  if until_us == granted_us and expires_us > at_us then
    until_us = expires_us
  end
  holds:remove(open)
  units = max(units - less, 0)
  holds:insert(position_for(holds, id, until_us), id, units, until_us, used)
  return "granted", until_us, units
end

-- Twin of algorithm/leased.rs. The highest bit of a lease's id is set.

-- Opens or renews a lease, and decides the check that waits.
-- request       id, used, want, most and lease_for_us; expires_us, the last expiry that was granted, nil to open the
--               lease; need, the cost of the check that waits, nil if none does
-- Returns       whether the state has changed, the decision with the place of its charge, and the lease: "open" and
--               the values of grow_lease; "none"; or why it has ended, "expired" or "unknown"
function held.lease(first_limit, first_state, first_holds, first_now_us, first_request)
  -- The functions for leases are created by the first request that needs them, because the server creates all others
  -- whenever it runs the script.

  -- How many of the holds from this position on are leases.
  local function lease_count(holds, position)
    local count = 0
    for index = position, holds.count do
      if holds:id(index):byte() >= 128 then
        count = count + 1
      end
    end
    return count
  end

  -- The expiry of a lease that is taken or renewed at at_us. Under a window it is the window's last microsecond at the
  -- latest, so that what a process takes from a lease is charged in the window of its use.
  local function lease_until_us(limit, at_us, lease_for_us)
    local until_us, decide = min(at_us + lease_for_us, MAX_TIME_US), limit.decide
    if decide == fixed_window or decide == sliding_window_counter then
      return min(until_us, at_us - at_us % limit.window_us + limit.window_us - 1)
    end
    return until_us
  end

  -- Charges what was taken from an open lease, and moves its expiry. Returns whether the lease is open, and, if the request
  -- is a renewal and the lease has ended, "expired" or "unknown".
  local function renew_lease(limit, state, holds, now_us, request)
    local id, expires_us = request.id, request.expires_us
    -- Without an expiry that was granted before, only a lease that is listed can have expired.
    local open, ended = find_open(limit, state, holds, now_us, id, expires_us or TWO_53)
    if not open then
      return false, (expires_us or ended == "expired") and ended or nil
    end
    held.settle(limit, state, holds, now_us, id, 0, request.used, false)
    local at_us = key_time_us(limit, state, now_us)
    open = holds:find(id)
    local units, used, until_us = holds.units[open], holds:used(open), holds.expires[open]
    local later_us = lease_until_us(limit, at_us, request.lease_for_us)
    -- The process may count on the expiry that was granted before.
    if later_us > until_us then
      holds:remove(open)
      holds:insert(position_for(holds, id, later_us), id, units, later_us, used)
    end
    return true
  end

  -- Adds units to the lease, or opens it, unless is_refused. At most half of what remains, divided among the leases of the
  -- key, is leased, so that the last units are decided one by one. Returns whether the lease was opened, and the lease if
  -- it is open: its unused units, its expiry, how long it lasts, and how many leases are open.
  local function grow_lease(limit, state, holds, now_us, request, is_refused)
    local id = request.id
    local open = holds:find(id)
    if is_refused and not open then
      return false
    end
    local seen = look(limit, state, holds, now_us)
    local at_us, leases = seen.at_us, lease_count(holds, seen.expired + 1)
    local unused, more = 0, 0
    if open then
      unused = holds.units[open]
    else
      leases = leases + 1
    end
    if not is_refused then
      -- Under an old limit at a new size, fewer units may be leased than remain.
      local own = beside_of(limit)
      local most = min(limit.size, own.most_taken(limit), own.most_units or MAX_UNITS)
      local remaining = max(most - seen.taken, 0)
      -- At least 1, also for an id without the lease bit.
      local parts = 2 * max(leases, 1)
      local share = (remaining - remaining % parts) / parts
      more = min(max(min(request.want, request.most) - unused, 0), share)
    end
    if open then
      if more > 0 then
        holds:set(open, unused + more, holds:used(open))
      end
      local expires_us = holds.expires[open]
      return false, unused + more, expires_us, expires_us - at_us, leases
    end
    local expires_us = lease_until_us(limit, at_us, request.lease_for_us)
    if more == 0 or holds.count - seen.expired >= MAX_HOLDS or expires_us <= at_us then
      return false
    end
    -- A refusal must leave no trace, so the key is brought up only if the lease is opened.
    bring_up(limit, state, holds, now_us)
    holds:insert(position_for(holds, id, expires_us), id, more, expires_us, 0)
    return true, more, expires_us, expires_us - at_us, leases
  end

  function held.lease(limit, state, holds, now_us, request)
    restart_clock(limit, state, holds, now_us)
    local is_renewed, ended = renew_lease(limit, state, holds, now_us, request)
    local need, is_charged, seen, place, place_too = request.need, false, nil, nil, nil
    if need then
      seen, is_charged, place, place_too = charge_check(limit, state, holds, now_us, need)
    end
    local is_refused, decided = need and not is_charged, nil
    local is_opened, unused, expires_us, lasts_us, leases
    if not ended then
      is_opened, unused, expires_us, lasts_us, leases =
        grow_lease(limit, state, holds, now_us, request, is_refused)
    end
    if is_refused then
      decided = { decision_on_check(seen, need) }
    else
      decided = { held.decision_after(limit, state, holds, now_us, is_charged or not ended) }
      decided[7], decided[8] = place, place_too
    end
    return is_renewed or is_opened or is_charged, decided, ended or (unused and "open") or "none",
      unused, expires_us, lasts_us, leases
  end

  return held.lease(first_limit, first_state, first_holds, first_now_us, first_request)
end

-- The decision that a settlement or an extension reports. Returns the same values as `algorithm.peek`.
function held.decision_after(limit, state, holds, now_us, is_allowed)
  return decision(look(limit, state, holds, now_us), is_allowed, NEVER)
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
  local has_open = seen.holds.count > seen.expired
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
  if limit.decide.only_holds and holds.count > 0 then
    return true, limit, { at_us = at_us }
  end
  return true, limit, algorithm.carried(limit, old, state, spent, now_us)
end
end
