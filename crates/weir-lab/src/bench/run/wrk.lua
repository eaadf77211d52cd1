-- Runs inside wrk: sets fields of the request from the arguments, prints one line of JSON at the end.
-- Arguments after `--`: "close" for a connection for each request, "browser" for fields as a browser sends them.
-- The request is built once; nothing here runs for each request.
function init(args)
  for _, word in ipairs(args) do
    if word == "close" then
      wrk.headers["Connection"] = "close"
    elseif word == "browser" then
      local cookie = {}
      for i = 1, 24 do
        cookie[i] = string.format("name%02d=%s", i, string.rep(string.char(96 + i), 54))
      end
      wrk.headers["User-Agent"] = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"
      wrk.headers["Accept"] = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
      wrk.headers["Accept-Language"] = "en-GB,en;q=0.8,de;q=0.5,fr;q=0.3"
      wrk.headers["Accept-Encoding"] = "gzip, deflate, br, zstd"
      wrk.headers["Referer"] = "https://www.example.com/a/page/that/links/here?with=query&and=more"
      wrk.headers["Upgrade-Insecure-Requests"] = "1"
      wrk.headers["Sec-Fetch-Dest"] = "document"
      wrk.headers["Sec-Fetch-Mode"] = "navigate"
      wrk.headers["Sec-Fetch-Site"] = "same-origin"
      wrk.headers["Sec-Fetch-User"] = "?1"
      wrk.headers["Priority"] = "u=0, i"
      wrk.headers["Cookie"] = table.concat(cookie, "; ")
    end
  end
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\nresult {"requests":%d,"bytes":%d,"duration_us":%d,"p50_us":%d,"p95_us":%d,"p99_us":%d,"p999_us":%d,"max_us":%d,' ..
      '"errors":{"connect":%d,"read":%d,"write":%d,"timeout":%d,"status":%d}}\n',
    summary.requests, summary.bytes, summary.duration, latency:percentile(50), latency:percentile(95),
    latency:percentile(99), latency:percentile(99.9), latency.max, e.connect, e.read, e.write, e.timeout, e.status))
end
