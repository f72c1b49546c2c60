-- Posts a body repeatedly, each time with the next number in place of its #.
-- args     the body; how many numbers are used in turn, from 42 on
-- Example  {"key":"user:#"} 2: user:42, user:43, user:42 and so on
function init(args)
  local body, count = args[1], tonumber(args[2])
  wrk.method = "POST"
  wrk.headers["content-type"] = "application/json"
  wrk.body = body:gsub("#", "42")
  if count == 1 then
    -- Without a function `request`, wrk does not call Lua for each request.
    return
  end
  local requests, nth = {}, 0
  for number = 1, count do
    requests[number] = wrk.format(nil, nil, nil, (body:gsub("#", tostring(41 + number))))
  end
  function request()
    nth = nth % count + 1
    return requests[nth]
  end
end
