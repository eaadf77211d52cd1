//! `sticky` of an upstream: the cookie that binds sessions to servers. Called by
//! [`super::compile`].

use weir_proxy::placement::sticky::{Cookie, SameSite, Sticky};

use super::Compiler;
use crate::check::Checked;
use crate::problem::Problem;

/// Compiles the cookie of an upstream, and reports cookies that browsers would drop.
pub(super) fn sticky(compiler: &mut Compiler<'_>, block: &Checked, upstream: &Checked) -> Sticky {
    let same_site = match block.word("same-site") {
        "strict" => SameSite::Strict,
        "none" => SameSite::None,
        _ => SameSite::Lax,
    };
    let (name, secure, path) = (block.text("cookie"), block.flag("secure"), block.text("path"));
    if same_site == SameSite::None && !secure {
        let problem = Problem::new(
            "conflict",
            &block.place("same-site"),
            "browsers drop a cookie with `same-site` none and without `secure`",
        );
        compiler.push(problem.help("write secure=#true, or leave `same-site` out"));
    }
    // draft-ietf-httpbis-rfc6265bis: browsers compare these prefixes without regard to case.
    let begins = |prefix: &str| {
        name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    let is_host = begins("__Host-");
    let mut drops = |what: &str, help: &str| {
        let message = format!("browsers drop a cookie called `{name}` {what}");
        compiler.push(Problem::new("conflict", &block.place("cookie"), message).help(help));
    };
    if !secure && (is_host || begins("__Secure-")) {
        drops("without `secure`", "write secure=#true, or choose another name");
    }
    if is_host && path != "/" {
        drops("with another path than `/`", "leave `path` out, or choose another name");
    }
    let cookie = Cookie {
        name: name.to_owned(),
        path: path.to_owned(),
        max_age_s: block.count_or_none("max-age").map(|us| us / 1_000_000),
        http_only: block.flag("http-only"),
        secure,
        same_site,
    };
    let servers: Vec<&str> = upstream.all("server").map(|server| server.text("address")).collect();
    let (secret, failover) = (block.text("secret"), block.flag("allow-failover"));
    Sticky::new(&cookie, failover, secret, upstream.text("name"), &servers)
}

#[cfg(test)]
mod tests {
    //! Proves: which cookies browsers drop because of their names. How: a table.

    /// Returns the messages about such a cookie.
    fn said(cookie: &str) -> String {
        let text = format!(
            "listen \"127.0.0.1:8080\"\n\
             upstream \"a\" {{ server \"10.0.0.1:1\"; sticky {cookie}; }}\n\
             route {{ proxy \"a\"; }}\n"
        );
        crate::parse(&text, "weir.kdl").err().map(|errors| errors.to_string()).unwrap_or_default()
    }

    #[test]
    fn prefixes_of_names() {
        let (secure, path) = ("without `secure`", "with another path than `/`");
        for (cookie, expected) in [
            ("cookie=\"__Secure-s\" path=\"/a\"", &[secure][..]),
            ("cookie=\"__Secure-s\" secure=#true path=\"/a\"", &[]),
            ("cookie=\"__Host-s\" secure=#true", &[]),
            ("cookie=\"__Host-s\" secure=#true path=\"/a\"", &[path]),
            ("cookie=\"__Host-s\" path=\"/a\"", &[secure, path]),
            ("cookie=\"__hOST-s\"", &[secure]),
            ("cookie=\"__secure-s\"", &[secure]),
            ("cookie=\"Host-s\" path=\"/a\"", &[]),
            ("cookie=\"__\" path=\"/a\"", &[]),
        ] {
            let said = said(cookie);
            for what in [secure, path] {
                assert_eq!(said.contains(what), expected.contains(&what), "{cookie}: {said}");
            }
            assert_eq!(said.is_empty(), expected.is_empty(), "{cookie}: {said}");
        }
    }
}
