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
    if name.starts_with("__Host-") && (!secure || path != "/")
        || name.starts_with("__Secure-") && !secure
    {
        let message = format!(
            "browsers drop a cookie called `{name}` without `secure`, or with another path than `/`"
        );
        compiler.push(Problem::new("conflict", &block.place("cookie"), message));
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
