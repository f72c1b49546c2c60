-- Runs muldiv on every argument.
-- ARGV[i]    "a b divisor"
-- Returns    "quotient remainder" for each
local answers = {}
for index, argument in ipairs(ARGV) do
  local a, b, divisor = argument:match("(%d+) (%d+) (%d+)")
  local quotient, remainder = muldiv(tonumber(a), tonumber(b), tonumber(divisor))
  answers[index] = string.format("%.0f %.0f", quotient, remainder)
end
return answers
