-- Token bucket: a balance that comes back at a steady rate. Twin of token_bucket.rs. Load it after
-- bucket.lua, which has everything but the constructor.
--
-- Example    token_bucket.new(10, 1, 1000000) holds 10 and refills at 1/s: 8 spent at 0 s leave 2,
--            and at 3 s there are 5
local token_bucket = {}

function token_bucket.new(capacity, refill_units, per_us)
  return bucket.new(capacity, refill_units, per_us)
end
