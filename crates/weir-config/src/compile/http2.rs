//! HTTP/2: `protocols` of a listener, and `http2` in `client`, compiled.

use weir_proxy::plan::{Http2Plan, Protocols, Serves};

use super::{Compiler, narrow};
use crate::check::Checked;
use crate::problem::Problem;

impl Compiler<'_> {
    /// Returns the versions of HTTP that the clients of a listener may speak.
    pub(super) fn protocols(
        &mut self,
        listen: &Checked,
        serves: Serves,
        is_sealed: bool,
    ) -> Protocols {
        let words = listen.texts("protocols");
        let has = |word: &str| words.contains(&word);
        if words.is_empty() {
            return Protocols { http1: true, http2: is_sealed && serves == Serves::Reverse };
        }
        let place = listen.place("protocols");
        if serves == Serves::Forward && (has("h2") || has("h2c")) {
            let problem = Problem::new("conflict", &place, "`forward` supports only `http/1.1`");
            self.push(problem.help("leave `protocols` out"));
        } else if is_sealed && has("h2c") {
            let problem = Problem::new(
                "conflict",
                &place,
                "`h2c` is HTTP/2 without TLS, and this `listen` has `tls`",
            );
            self.push(problem.help("write `h2`"));
        } else if !is_sealed && has("h2") {
            let problem = Problem::new(
                "conflict",
                &place,
                "`h2` is HTTP/2 with TLS, and this `listen` has no `tls`",
            );
            self.push(problem.help(
                "write `h2c`, for clients that start with HTTP/2 by prior knowledge, or add `tls`",
            ));
        }
        Protocols { http1: has("http/1.1"), http2: has("h2") || has("h2c") }
    }
}

/// Returns the limits of HTTP/2 connections.
pub(super) fn limits(client: &Checked) -> Http2Plan {
    let Some(block) = client.all("http2").next() else { return Http2Plan::default() };
    Http2Plan {
        streams_max: narrow(block.number("streams")),
        window_bytes: narrow(block.number("window")),
        connection_window_bytes: narrow(block.number("connection-window")),
    }
}
