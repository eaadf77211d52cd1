//! The messages that are parsed and forwarded: wrk's requests in the benchmark, and nginx's reply.

/// wrk's smallest request.
pub(crate) fn minimal() -> Vec<u8> {
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n".to_vec()
}

/// Twelve fields and a cookie of 1.5 KB.
pub(crate) fn browser() -> Vec<u8> {
    let cookie: Vec<String> =
        (0..24).map(|n| format!("name{n:02}={}", "abcdef".repeat(9))).collect();
    format!(
        "GET /a/page?with=query HTTP/1.1\r\n\
         Host: www.example.com\r\n\
         User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
         Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8\r\n\
         Accept-Language: en-GB,en;q=0.8,de;q=0.5,fr;q=0.3\r\n\
         Accept-Encoding: gzip, deflate, br, zstd\r\n\
         Referer: https://www.example.com/a/page/that/links/here?with=query&and=more\r\n\
         Upgrade-Insecure-Requests: 1\r\n\
         Sec-Fetch-Dest: document\r\n\
         Sec-Fetch-Mode: navigate\r\n\
         Sec-Fetch-Site: same-origin\r\n\
         Priority: u=0, i\r\n\
         Cookie: {}\r\n\r\n",
        cookie.join("; ")
    )
    .into_bytes()
}

/// The head of nginx's response for a file of three bytes.
pub(crate) fn reply_head() -> &'static str {
    "HTTP/1.1 200 OK\r\n\
     Server: nginx/1.22.1\r\n\
     Date: Fri, 20 Nov 2026 10:54:17 GMT\r\n\
     Content-Type: text/plain\r\n\
     Content-Length: 3\r\n\
     Last-Modified: Fri, 20 Nov 2026 10:54:16 GMT\r\n\
     Connection: keep-alive\r\n\
     ETag: \"6a0d8d38-3\"\r\n\
     Accept-Ranges: bytes\r\n\r\n"
}

/// The same with its body.
pub(crate) fn reply() -> Vec<u8> {
    format!("{}ok\n", reply_head()).into_bytes()
}

/// Makes a configuration with `servers` servers and `connections` kept connections in all, and an
/// access log of this format, or `off`.
pub(crate) fn plan(servers: usize, connections: usize, log: &str) -> weir_proxy::plan::Plan {
    let log =
        if log == "off" { String::new() } else { format!("access-log \"-\" format=\"{log}\";") };
    let each = connections / servers;
    let servers: String = (2..servers + 2)
        .map(|n| format!("server \"10.0.0.{n}:80\" connections-min={each}; "))
        .collect();
    let text = format!(
        "listen \"10.0.0.1:80\"; upstream \"app\" {{ {servers}}}; route {{ proxy \"app\"; }}"
    );
    weir_config::parse(&format!("{log}{text}"), "icount").expect("a good configuration").plan
}
