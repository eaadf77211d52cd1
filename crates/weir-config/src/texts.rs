//! Checks of text values, each with its canonical form: addresses, names, patterns. Called through
//! the option table.
//!
//! Nothing here uses the network: names of servers are resolved when the plan is compiled.

pub(crate) mod cache;
pub(crate) mod compress;
pub(crate) mod forward;
pub(crate) mod route;
pub(crate) mod shield;
pub(crate) mod sockets;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use weir_proxy::observe::access::{Escape, Name, Template, TemplateError};
use weir_proxy::plan::{BodyCheck, ORIGINAL_DESTINATION, UNIX};
use weir_proxy::upstream::health::{Codes, Symptom};

use crate::problem::nearest;

/// Longest host name, RFC 1035 §2.3.4.
const HOST_BYTES_MAX: usize = 255;
/// Longest name of a user or a group, that of `useradd`.
const ACCOUNT_BYTES_MAX: usize = 32;
/// Longest path of a unix socket, without its final zero; unix(7).
const SOCKET_BYTES_MAX: usize = 107;

/// The address of a listener: `address:port`, or `unix:` and the path of a socket.
pub(crate) fn listener(text: &str) -> Result<String, String> {
    match text.strip_prefix(UNIX) {
        Some(path) => socket_at(path, "weir.sock"),
        None if text.starts_with('/') => Err(format!("write a unix socket as {UNIX}{text}")),
        None => listen_address(text),
    }
}

/// The mode of a unix socket: octal digits.
pub(crate) fn socket_mode(text: &str) -> Result<String, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(format!("{mode:04o}"))
        }
        _ => Err(format!(
            "`{text}` is not a mode: write octal digits, such as 0660, or 0666 for all users"
        )),
    }
}

/// `address:port` to listen on.
pub(crate) fn listen_address(text: &str) -> Result<String, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address.to_string());
    }
    if text.starts_with('/') || text.starts_with(UNIX) {
        return Err(
            "only `listen` at the top can be on a unix socket; here write ADDRESS:PORT".to_owned()
        );
    }
    if let Some(why) = other_socket(text, "listen on") {
        return Err(why);
    }
    Err(match text.rsplit_once(':') {
        _ if text.parse::<Ipv6Addr>().is_ok() => in_brackets(text),
        Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => {
            format!("an IPv6 address needs brackets: [{host}]:{port}")
        }
        Some(("", port)) if port.parse::<u16>().is_ok() => {
            format!(
                "an address is missing: write 0.0.0.0:{port} for all of IPv4, [::]:{port} for all \
                    of IPv6"
            )
        }
        Some(("*", port)) => {
            format!("write 0.0.0.0:{port} for all of IPv4, [::]:{port} for all of IPv6")
        }
        None if text.parse::<u16>().is_ok() => {
            format!(
                "an address is missing: write 0.0.0.0:{text} for all of IPv4, [::]:{text} for all \
                    of IPv6"
            )
        }
        Some(("localhost", port)) => {
            format!("a listener needs an address, not a name: write 127.0.0.1:{port}")
        }
        _ if text.parse::<IpAddr>().is_ok() => "the port is missing: write ADDRESS:PORT".to_owned(),
        _ => {
            format!("`{text}` is not an address with a port, such as 127.0.0.1:8080 or [::1]:8080")
        }
    })
}

/// Returns why weir cannot use an address, if it is of a kind that other programs can. `to`: its
/// purpose, in words.
fn other_socket(text: &str, to: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let port = |port| {
        if rest.rsplit(':').next().is_some_and(|last| last.parse::<u16>().is_ok()) {
            ""
        } else {
            port
        }
    };
    Some(match (scheme.to_ascii_lowercase().as_str(), to) {
        ("https" | "tls" | "wss", "listen on") => {
            format!(
                "an address has no scheme and no path: write {rest}{}, followed by a `tls` block",
                port(":443")
            )
        }
        ("https" | "tls" | "wss", _) => format!(
            "an address has no scheme and no path: write {rest}{}, and add a `tls` block to the \
                upstream, for all its servers",
            port(":443")
        ),
        ("http" | "ws" | "tcp", _) => {
            format!("an address has no scheme and no path: write {rest}{}", port(":80"))
        }
        _ => format!("weir speaks HTTP/1.1 over TCP, and not `{scheme}`: write ADDRESS:PORT"),
    })
}

/// Returns the likely meaning of an IPv6 address without brackets: its last group may be a port.
fn in_brackets(text: &str) -> String {
    let with_port = text.rsplit_once(':').filter(|(address, port)| {
        let address =
            if address.ends_with(':') { format!("{address}:") } else { (*address).to_owned() };
        address.parse::<Ipv6Addr>().is_ok() && port.parse::<u16>().is_ok_and(|port| port >= 10)
    });
    match with_port {
        Some((address, port)) => {
            let address =
                if address.ends_with(':') { format!("{address}:") } else { address.to_owned() };
            format!("an IPv6 address needs brackets: [{address}]:{port}")
        }
        None => format!("an IPv6 address needs brackets, and the port is missing: [{text}]:PORT"),
    }
}

/// A name in Via.
pub(crate) fn via_name(text: &str) -> Result<String, String> {
    match weir_http::Pseudonym::new(text) {
        Some(_) => Ok(text.to_owned()),
        None => {
            Err("a name in Via must have 1 to 32 letters, digits or hyphens, such as edge-1"
                .to_owned())
        }
    }
}

/// A user or a group of this machine, by its name or its number.
pub(crate) fn account(text: &str) -> Result<String, String> {
    if text.is_empty()
        || text.len() > ACCOUNT_BYTES_MAX
        || text.contains(|c: char| c == ':' || !c.is_ascii_graphic())
    {
        return Err(format!(
            "a name must have 1 to {ACCOUNT_BYTES_MAX} letters, digits or signs, and no `:`"
        ));
    }
    Ok(text.to_owned())
}

/// The path of a unix socket.
pub(crate) fn socket_path(text: &str) -> Result<String, String> {
    if !text.starts_with('/') {
        return Err("a socket needs an absolute path, such as /run/weir/admin.sock".to_owned());
    }
    if text.ends_with('/') {
        return Err(format!("`{text}` is a directory: write {text}admin.sock"));
    }
    if text.len() > SOCKET_BYTES_MAX {
        return Err(format!(
            "the path of a socket may have at most {SOCKET_BYTES_MAX} bytes, not {}",
            text.len()
        ));
    }
    if text.contains(char::is_control) {
        return Err("a path must not contain control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// A name that a server's certificate may have.
pub(crate) fn peer_name(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(address.to_string());
    }
    match text.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => {
            Err(format!("a name has no port: write {host}"))
        }
        _ if is_host_name(text) && !text.starts_with('*') => Ok(text.to_ascii_lowercase()),
        _ => Err(format!("`{text}` is neither an address nor a host name")),
    }
}

/// As [`server_address`], or the client's original destination.
pub(crate) fn server_place(text: &str) -> Result<String, String> {
    if text == ORIGINAL_DESTINATION { Ok(text.to_owned()) } else { server_address(text) }
}

/// The source of connections to servers: an address, or `client`.
pub(crate) fn source(text: &str) -> Result<String, String> {
    if text == "client" {
        return Ok(text.to_owned());
    }
    match text.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() || address.is_multicast() => {
            Err("weir cannot connect from this address: leave the option out to let the routing \
                table decide"
                .to_owned())
        }
        Ok(address) => Ok(address.to_string()),
        Err(_) if text.parse::<SocketAddr>().is_ok() => {
            Err("write the address without a port: each connection gets its own port".to_owned())
        }
        Err(_) => Err("expected an address of this machine, such as 10.0.0.5, or \
            `client`"
            .to_owned()),
    }
}

/// The name of a congestion control, as in the kernel (include/net/tcp.h: TCP_CA_NAME_MAX).
pub(crate) fn congestion(text: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    if text.is_empty() || text.len() > 15 || !text.chars().all(fine) {
        return Err("a name must have 1 to 15 lowercase letters, digits, `_` and `-`, such as bbr"
            .to_owned());
    }
    Ok(text.to_owned())
}

/// `host:port` of a server, whose host may be a name, or `unix:` and the path of a socket.
pub(crate) fn server_address(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        return Err(format!("write a unix socket as {UNIX}{text}"));
    }
    if let Some(path) = text.strip_prefix(UNIX) {
        return socket_at(path, "app.sock");
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return if address.port() == 0 {
            Err("weir cannot connect to port 0".to_owned())
        } else {
            Ok(address.to_string())
        };
    }
    if let Some(why) = other_socket(text, "connect to") {
        return Err(why);
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(in_brackets(text));
    }
    if is_service(text) {
        return Ok(text.to_owned());
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("the port is missing: write {text}:80 or another port"));
    };
    if !matches!(port.parse::<u16>(), Ok(1..)) {
        return Err(format!("`{port}` is not a port (1 to 65535)"));
    }
    if host.contains(':') {
        return Err("an IPv6 address needs brackets: [ADDRESS]:PORT".to_owned());
    }
    if !is_host_name(host) {
        return Err(format!("`{host}` is neither an address nor a host name"));
    }
    Ok(text.to_owned())
}

/// The path of a unix socket, such as one with this name, behind [`UNIX`].
fn socket_at(path: &str, name: &str) -> Result<String, String> {
    if let Some(path) = path.strip_prefix("//") {
        return Err(format!(
            "`{UNIX}` is followed directly by the path: write {UNIX}/{}",
            path.trim_start_matches('/')
        ));
    }
    if path.starts_with('@') {
        return Err("weir supports unix sockets with a path, not abstract names".to_owned());
    }
    if !path.starts_with('/') {
        return Err(format!("a unix socket needs an absolute path, such as {UNIX}/run/{name}"));
    }
    if let Some((path, _)) = path.split_once(':').filter(|_| path.ends_with(':')) {
        return Err(format!("nothing may follow the path: write {UNIX}{path}"));
    }
    if path.ends_with('/') {
        return Err(format!(
            "`{path}` is a directory: write the path of the socket, such as {UNIX}{path}{name}"
        ));
    }
    socket_path(path).map(|path| format!("{UNIX}{path}"))
}

/// One status, a class of them, or a range.
pub(crate) fn codes(text: &str) -> Result<String, String> {
    match Codes::parse(text) {
        Some(codes) => Ok(codes.to_string()),
        None => Err(format!(
            "`{text}` is not a status: write one such as 503, a class such as 5xx, or a range such \
                as 500-504"
        )),
    }
}

/// The symptom of a `failover` rule.
pub(crate) fn symptom(text: &str) -> Result<String, String> {
    match Symptom::parse(text) {
        Some(symptom) => Ok(symptom.to_string()),
        None => Err(format!(
            "`{text}` is not a status: write one such as 503, a class such as 5xx, a range such as \
                500-504, or lost"
        )),
    }
}

/// The name of an upstream.
pub(crate) fn upstream_name(text: &str) -> Result<String, String> {
    if let Some(why) = place_for_name(text) {
        return Err(why);
    }
    name(text)
}

/// The name of a listener, in `listen` and where a route names one.
pub(crate) fn listener_name(text: &str) -> Result<String, String> {
    if listener(text).is_ok() {
        return Err(format!(
            "this is an address and not the name of a listener: write listen \"{text}\" \
                name=\"admin\", and the name in routes"
        ));
    }
    name(text)
}

fn name(text: &str) -> Result<String, String> {
    let fine = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > 64 || !text.chars().all(fine) {
        return Err("a name must have 1 to 64 letters, digits, `-`, `_` and `.`".to_owned());
    }
    Ok(text.to_owned())
}

/// Returns what to write if an address is given in place of the name of an upstream; None: it is no
/// address.
fn place_for_name(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let address =
        if text.starts_with(UNIX) { text } else { rest.split('/').next().unwrap_or_default() };
    let is_address = !scheme.is_empty()
        || text.starts_with(UNIX)
        || address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let tls = if scheme.eq_ignore_ascii_case("https") { "tls; " } else { "" };
    let port = match scheme.to_ascii_lowercase().as_str() {
        "http" if !address.contains(':') => ":80",
        "https" if !address.contains(':') => ":443",
        _ => "",
    };
    is_address.then(|| {
        format!(
            "this is the name of an upstream and not an address: write upstream \"app\" {{ \
             {tls}server \"{address}{port}\"; }} \
             and proxy \"app\""
        )
    })
}

/// The host of a route: `*`, a name, or `*.` and a name.
pub(crate) fn host_pattern(text: &str) -> Result<String, String> {
    if text == "*" {
        return Ok(text.to_owned());
    }
    if text.contains([',', ' ']) {
        return Err(format!("`{text}` is more than one name: write a `route` or `sni` for each"));
    }
    let name = text.strip_prefix("*.").unwrap_or(text);
    let address = name.parse::<IpAddr>().is_ok() || bracketed(name);
    if !address && !is_host_name(name.strip_suffix('.').unwrap_or(name)) {
        return Err(format!(
            "`{text}` is not a host: write `*`, `www.example.org` or `*.example.org`, without \
                a port"
        ));
    }
    Ok(text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase())
}

fn bracketed(name: &str) -> bool {
    name.strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|inside| inside.parse::<IpAddr>().is_ok())
}

/// The path of a route, in the normalised form of requests.
pub(crate) fn route_path(text: &str) -> Result<String, String> {
    if !text.starts_with('/') {
        return Err("a path must begin with `/`".to_owned());
    }
    if text.contains(['?', '#', '*']) {
        return Err("a path is a plain prefix: it can't contain `?`, `#` or `*`".to_owned());
    }
    if text.contains(|c: char| c.is_control() || c == '\\' || c == '%') {
        return Err("write the path decoded, without `%`, `\\` and control characters".to_owned());
    }
    let mut segments = text[1..].split('/').rev().skip_while(|segment| segment.is_empty());
    if text.contains("//") || segments.any(|segment| matches!(segment, "" | "." | "..")) {
        return Err(
            "a path must not have empty, `.` or `..` segments: weir compares requests without them"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

/// A method: a token, RFC 9110 §9.1. Methods are compared with case, so lower case is nearly always
/// a mistake.
pub(crate) fn method(text: &str) -> Result<String, String> {
    if !is_token(text) {
        return Err(format!("`{text}` is not a method"));
    }
    let upper = text.to_ascii_uppercase();
    if upper != text {
        return Err(format!("methods are case-sensitive: write {upper}"));
    }
    Ok(upper)
}

/// A protocol for clients: a name of RFC 7301's registry, compared without case here.
pub(crate) fn protocol(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        "h2" | "h2c" | "http/1.1" => Ok(lower),
        "http/2" | "http2" => Err(format!("`{text}` is called `h2` with TLS, and `h2c` without")),
        "h3" | "http/3" => Err("weir does not speak HTTP/3; write `h2`".to_owned()),
        _ => Err(format!("`{text}` is not a protocol: write `h2`, `h2c` or `http/1.1`")),
    }
}

/// The key that requests are hashed by. Names of fields are compared without case, those of cookies
/// with it.
pub(crate) fn balance_key(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        None if text == "uri" || text == "client-ip" => Ok(text.to_owned()),
        Some(("header", name)) if is_token(name) => Ok(text.to_ascii_lowercase()),
        Some(("cookie", name)) if is_token(name) => Ok(text.to_owned()),
        Some(("header" | "cookie", name)) => Err(format!("`{name}` is not a name")),
        _ => Err("write `uri`, `client-ip`, `header:NAME` or `cookie:NAME`".to_owned()),
    }
}

/// The name of a cookie: a token, RFC 6265 §4.1.1.
pub(crate) fn cookie_name(text: &str) -> Result<String, String> {
    if is_token(text) && text.len() <= 64 {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is not a name"))
    }
}

/// The path of a cookie, RFC 6265 §4.1.1.
pub(crate) fn cookie_path(text: &str) -> Result<String, String> {
    let fine = |byte: u8| byte.is_ascii_graphic() && byte != b';';
    if text.starts_with('/') && text.bytes().all(fine) {
        return Ok(text.to_owned());
    }
    Err("a path must begin with `/` and contain neither `;` nor spaces".to_owned())
}

/// A text that others must not know.
pub(crate) fn secret(text: &str) -> Result<String, String> {
    if text.len() < 16 {
        return Err(
            "a secret must have at least 16 characters: `head -c 24 /dev/urandom | base64` \
                makes one"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

/// The name of the field that carries an identifier there and back.
pub(crate) fn echo_field(text: &str) -> Result<String, String> {
    const TAKEN: [&str; 12] = [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "via",
        "forwarded",
        "cookie",
    ];
    let lower = text.to_ascii_lowercase();
    if !is_token(text) || text.contains('_') {
        return Err(format!("`{text}` is not a header name"));
    }
    let reserved = TAKEN.contains(&lower.as_str())
        || lower.starts_with("proxy-")
        || lower.starts_with("x-forwarded-");
    if reserved {
        return Err(format!(
            "the header `{lower}` has another meaning: choose another, such as x-request-id"
        ));
    }
    Ok(lower)
}

/// A range such as `10.0.0.0/8`, or one address.
pub(crate) fn network(text: &str) -> Result<String, String> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| {
        format!("`{text}` is not an address or a range such as 10.0.0.0/8 or fd00::/8")
    })?;
    let max: u8 = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => max,
        Some(bits) => bits
            .parse()
            .ok()
            .filter(|bits| *bits <= max)
            .ok_or_else(|| format!("`/{bits}` must be 0 to {max}"))?,
    };
    Ok(format!("{address}/{bits}"))
}

/// A range, one address, or all clients over a unix socket.
pub(crate) fn peers(text: &str) -> Result<String, String> {
    if text == UNIX || text == "unix" { Ok(UNIX.to_owned()) } else { network(text) }
}

/// The destination of the access log.
pub(crate) fn log_destination(text: &str) -> Result<String, String> {
    match text {
        "" => Err("expected a path, `stdout` or `off`".to_owned()),
        "-" => Ok("stdout".to_owned()),
        "stderr" | "syslog" | "journald" => Err(format!(
            "`{text}` is not supported: write a path or `stdout` (a file of that name is \
                `./{text}`)"
        )),
        _ if text.contains(char::is_control) => {
            Err("a path must not contain control characters".to_owned())
        }
        _ => Ok(text.to_owned()),
    }
}

/// The format of an access log line: a preset, or a text with names.
pub(crate) fn log_format(text: &str) -> Result<String, String> {
    const PRESETS: [&str; 3] = ["combined", "common", "json"];
    if PRESETS.contains(&text) {
        return Ok(text.to_owned());
    }
    match Template::compile(text, Escape::Default) {
        Ok(_) => Ok(text.to_owned()),
        Err(TemplateError::NoName) => Err(match nearest(text, PRESETS) {
            Some(preset) => format!("`{text}` is not known here; did you mean `{preset}`?"),
            None => format!(
                "`{text}` is not a format: write `combined`, `common`, `json`, or a text with \
                    variables such as `$status`"
            ),
        }),
        Err(TemplateError::Unknown(name)) => Err(unknown_name(&name)),
        Err(error) => Err(error.to_string()),
    }
}

fn unknown_name(name: &str) -> String {
    // `nearest` compares words in the form of options.
    let words: Vec<(String, &str)> =
        Name::ALL.iter().map(|(_, word, _)| (word.replace('_', "-"), *word)).collect();
    let near = nearest(name, words.iter().map(|(dashed, _)| dashed.as_str()));
    if let Some((_, word)) = near.and_then(|near| words.iter().find(|(dashed, _)| dashed == near)) {
        return format!("unknown variable `${name}`; did you mean `${word}`?");
    }
    let all: Vec<String> = words.iter().map(|(_, word)| format!("${word}")).collect();
    format!(
        "unknown variable `${name}`; known are {} and $http_NAME for any request header",
        all.join(" ")
    )
}

/// A regular expression over bytes.
pub(crate) fn regex(text: &str) -> Result<String, String> {
    match regex::bytes::Regex::new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => {
            let message = error.to_string();
            Err(format!(
                "not a regular expression: {}",
                message.lines().last().unwrap_or("").trim_start_matches("error: ")
            ))
        }
    }
}

/// A part of a request target.
pub(crate) fn target(text: &str) -> Result<String, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte > b' ' && byte != 0x7f) {
        return Err("a request target must not be empty or contain white space".to_owned());
    }
    Ok(text.to_owned())
}

/// Path and query of a probe.
pub(crate) fn probe_path(text: &str) -> Result<String, String> {
    if !text.starts_with('/') || !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(format!("`{text}` is not a path: it begins with `/` and has no white space"));
    }
    Ok(text.to_owned())
}

/// The Host field of a probe.
pub(crate) fn probe_host(text: &str) -> Result<String, String> {
    let host = match text.rsplit_once(':') {
        Some((host, port)) if matches!(port.parse::<u16>(), Ok(1..)) => host,
        _ => text,
    };
    if !is_host_name(host) && !bracketed(host) {
        return Err(format!(
            "`{text}` is not a host: write it like www.example.org or www.example.org:8080"
        ));
    }
    Ok(text.to_owned())
}

/// The text that the response to a probe contains.
pub(crate) fn probe_text(text: &str) -> Result<String, String> {
    match text.len() {
        1..=4096 => match body_check(text) {
            Some(BodyCheck::Sha256(_)) => Ok(text.to_ascii_lowercase()),
            Some(BodyCheck::Contains(_)) => Ok(text.to_owned()),
            None => {
                Err("a SHA-256 must have 64 hexadecimal digits, as `sha256sum` prints them"
                    .to_owned())
            }
        },
        _ => Err("a text to look for must have 1 to 4096 bytes".to_owned()),
    }
}

/// Returns the meaning of a valid `expect-body`; None: it is not valid.
pub(crate) fn body_check(text: &str) -> Option<BodyCheck> {
    let Some(digits) = text.strip_prefix("sha256:") else {
        return Some(BodyCheck::Contains(text.to_owned()));
    };
    if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some(BodyCheck::Sha256(digest))
}

/// The name of a service (RFC 2782), such as `_http._tcp.app.internal`.
fn is_service(name: &str) -> bool {
    let labels: Vec<&str> = name.splitn(3, '.').collect();
    matches!(
        labels[..],
        [service, protocol, _] if service.starts_with('_') && protocol.starts_with('_')
    ) && is_host_name(name)
}

fn is_host_name(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= HOST_BYTES_MAX && name.split('.').all(label)
}

fn is_token(text: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.len() <= 64 && text.bytes().all(fine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::TextCheck;

    fn table(check: TextCheck, good: &[(&str, &str)], bad: &[&str]) {
        for (text, canonical) in good {
            assert_eq!(check(text).as_deref(), Ok(*canonical));
            assert_eq!(
                check(canonical).as_deref(),
                Ok(*canonical),
                "the canonical form reads back"
            );
        }
        for text in bad {
            assert!(check(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses() {
        let good =
            [("0.0.0.0:80", "0.0.0.0:80"), ("[::]:80", "[::]:80"), ("[0:0::1]:0", "[::1]:0")];
        table(
            listen_address,
            &good,
            &["", ":80", "*:80", "localhost:80", "1.2.3.4", "::1", "1.2.3.4:99999", "a:b"],
        );
        let good =
            ["10.0.0.1:9090", "app_1.local:80", "[::1]:1", "_http._tcp.app.internal", "_a._b.c"];
        table(
            server_address,
            &good.map(|text| (text, text)),
            &[
                "",
                "a",
                ":80",
                "a:0",
                "a:x",
                "http://a:80",
                "::1:80",
                "1.2.3.4:0",
                "a b:80",
                "a..b:1",
                "_http._tcp",
                "_http.a",
                "_http._tcp.",
                "_http._tcp.a b",
            ],
        );
    }

    #[test]
    fn names_and_patterns() {
        table(
            server_place,
            &[("original-destination", "original-destination"), ("a:1", "a:1")],
            &["destination", ""],
        );
        table(
            source,
            &[("client", "client"), ("10.0.0.5", "10.0.0.5"), ("0::1", "::1")],
            &["", "Client", "10.0.0.5:80", "[::1]", "0.0.0.0", "::", "224.0.0.1", "eth0"],
        );
        table(
            congestion,
            &[("bbr", "bbr"), ("x_1-y", "x_1-y")],
            &["", "BBR", "a b", "abcdefghijklmnop"],
        );
        table(upstream_name, &[("app-1", "app-1")], &["", "a b", "a/b"]);
        table(listener_name, &[("admin", "admin")], &["", "a b", "0.0.0.0:80", "unix:/run/a"]);
        let good = [
            ("*", "*"),
            ("WWW.Example.org.", "www.example.org"),
            ("*.a", "*.a"),
            ("[::1]", "[::1]"),
        ];
        table(host_pattern, &good, &["", "a:80", "*a", "a.*", "**", "a/b", "*."]);
        table(
            route_path,
            &[("/", "/"), ("/a/", "/a/"), ("/café", "/café")],
            &["", "a", "/a?b", "/a//b", "/../a", "/a%20", "//"],
        );
        table(method, &[("GET", "GET"), ("M-SEARCH", "M-SEARCH")], &["", "get", "G T"]);
        table(
            echo_field,
            &[("X-Request-ID", "x-request-id")],
            &["", "Host", "proxy-x", "a b", "x_y", "X-Forwarded-For"],
        );
        let good = [("10.0.0.0/8", "10.0.0.0/8"), ("::1", "::1/128"), ("1.2.3.4", "1.2.3.4/32")];
        table(network, &good, &["", "10/8", "10.0.0.0/33", "::/129", "a/8", "10.0.0.0/"]);
        table(regex, &[("^/a[0-9]+$", "^/a[0-9]+$")], &["(", "a{99999999}"]);
        table(target, &[("/forum?post", "/forum?post")], &["", "/a b"]);
    }
}
