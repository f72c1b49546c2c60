-- Leaky bucket: a level that leaks at a steady rate, as a meter or as a queue. Twin of
-- leaky_bucket.rs. Load it after bucket.lua, which has everything but the constructors.
--
-- Example    leaky_bucket.shaping(3, 1, 1000000) holds 3 and leaks 1/s: three at once leave at 0, 1
--            and 2 s
local leaky_bucket = {}

function leaky_bucket.policing(capacity, leak_units, per_us)
  return bucket.new(capacity, leak_units, per_us)
end

function leaky_bucket.shaping(capacity, leak_units, per_us)
  local limit = bucket.new(capacity, leak_units, per_us)
  limit.is_shaping = true
  return limit
end
