-- A token bucket as in articles about rate limits: a hash of two fields, in floating point. Unlike most of
-- them, it uses the server's time, does not let time go backwards, and writes nothing when it refuses.
-- KEYS[1]   the bucket
-- ARGV[1]   capacity, in tokens
-- ARGV[2]   refill, in tokens per second
-- Returns   1 if allowed, else 0; the number of whole tokens that are left
-- Example   a bucket of 10 at 1/s that was never checked before: 1, 9
local capacity = tonumber(ARGV[1])
local refill_per_s = tonumber(ARGV[2])

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]

local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'last_refill')
local tokens = tonumber(bucket[1]) or capacity
local last_refill_us = tonumber(bucket[2]) or now_us

local elapsed_us = math.max(0, now_us - last_refill_us)
tokens = math.min(capacity, tokens + elapsed_us * refill_per_s / 1000000)
if tokens < 1 then
  return {0, 0}
end

tokens = tokens - 1
redis.call('HSET', KEYS[1], 'tokens', tokens, 'last_refill', last_refill_us + elapsed_us)
redis.call('EXPIRE', KEYS[1], math.ceil(capacity / refill_per_s) + 1)
return {1, math.floor(tokens)}
