-- Notes that a limiter is alive, and counts the limiters that are.
-- KEYS[1]  the limiters: 16 bytes of id and 14 digits each, the time at which it counts as gone, in milliseconds
-- ARGV[1]  the id of this limiter, 16 bytes
-- ARGV[2]  for how many milliseconds it counts as alive from now on
-- ARGV[3]  the most limiters that are noted
-- Returns  the number of limiters that are alive, this one included
-- Example  a limiter notes itself for 5000 ms beside one that has 2000 ms left: 2
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local members = redis.call('GET', KEYS[1]) or ''
if #members % 30 ~= 0 then
  return redis.error_reply('ERR the value is no list of limiters')
end
local function padded(ms)
  return string.format('%014.0f', ms)
end
local now, latest = padded(now_ms), padded(now_ms + 3600000)
local alive = { ARGV[1] .. padded(now_ms + ARGV[2]) }
for at = 1, #members, 30 do
  local id, gone = string.sub(members, at, at + 15), string.sub(members, at + 16, at + 29)
  -- A time that is more than an hour ahead is from before the server's clock was set back.
  if id ~= ARGV[1] and now < gone and gone <= latest and #alive < tonumber(ARGV[3]) then
    alive[#alive + 1] = id .. gone
  end
end
redis.call('SET', KEYS[1], table.concat(alive), 'PX', 3600000)
return #alive
