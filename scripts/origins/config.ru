# The application for Ruby servers.
LOG = File.open(ENV["ORIGINS_LOG"] || "/dev/null", "a")
LOG.sync = true
run(lambda do |env|
  path, asked = env["PATH_INFO"], env["QUERY_STRING"].split("&").to_h { |part| part.split("=", 2) }
  own = asked["n"] || "-"
  LOG.syswrite("#{env["REQUEST_METHOD"]} #{path} #{own}\n")
  raise "boom" if path == "/boom"
  fields = { "X-N" => own }
  fields["Connection"] = "close" if path == "/close"
  sleep(asked["ms"].to_i / 1000.0) if asked["ms"]
  return_empty = { "/204" => 204, "/304" => 304 }[path]
  next [return_empty, fields, []] if return_empty
  body = { "/page" => "page\n", "/big" => own.ljust(300_000, "x") }[path] || own
  body = env["rack.input"].read if path == "/echo"
  fields.merge!("Content-Type" => "text/plain", "Content-Length" => body.bytesize.to_s)
  [200, fields, [body]]
end)
