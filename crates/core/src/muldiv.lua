-- Exact a * b / divisor. Twin of muldiv.rs: change both, then run the tests in tests/twins.
--
-- a, b, divisor   whole numbers below 2^53, the divisor at least 1, the quotient below 2^53
-- Returns         the quotient and the remainder
-- Example         muldiv(7, 3, 4) is 5, 1: 21 quarters are 5 and one quarter
--
-- Numbers are doubles: whole numbers below 2^53 are exact. A quotient of two of them that is not whole
-- is too far from the next whole number to round to it, so `%` is exact too. A result below 2^53 never
-- rounds to one above it, nor the other way round: comparing with 2^53 is safe.
local TWO_53 = 2 ^ 53

-- Upper and lower half of a number's 53 bits; products of halves are exact.
local function halves(a)
  local shifted = a * 134217729 -- 2^27 + 1
  local upper = shifted - (shifted - a)
  return upper, a - upper
end

-- a * b as the nearest double and the difference to the exact product, which is exact too.
local function two_product(a, b)
  local product = a * b
  local a_upper, a_lower = halves(a)
  local b_upper, b_lower = halves(b)
  local left_out = a_upper * b_upper - product + a_upper * b_lower + a_lower * b_upper
  return product, left_out + a_lower * b_lower
end

local function muldiv_wide(a, b, divisor)
  local product, left_out = two_product(a, b)
  local quotient = product / divisor
  quotient = quotient - quotient % 1
  -- Off by two at most, because it is below 2^53 and was rounded twice.
  for _ = 1, 3 do
    local taken, taken_left_out = two_product(quotient, divisor)
    -- OK because both differences are exact, and their sum is unless it is beyond 2^53: then it
    -- is wrong either way, and the quotient is corrected.
    local remainder = (product - taken) + (left_out - taken_left_out)
    if remainder < 0 then
      quotient = quotient - 1
    elseif remainder >= divisor then
      quotient = quotient + 1
    else
      return quotient, remainder
    end
  end
  error("muldiv: the quotient passes 2^53")
end

local function muldiv(a, b, divisor)
  local product = a * b
  if product < TWO_53 then
    local remainder = product % divisor
    return (product - remainder) / divisor, remainder
  end
  return muldiv_wide(a, b, divisor)
end
