//! `users` of `route` and of `forward`: files with names and hashed passwords. Called by
//! [`super::compile`].

use std::path::Path;
use std::sync::Arc;

use weir_proxy::plan::Plan;
use weir_proxy::request::rules::basic_auth::BasicAuth;

use super::Compiler;
use crate::check::Checked;
use crate::problem::Problem;

impl Compiler<'_> {
    /// The content of the file is checked now and again when it is used.
    pub(super) fn users(&mut self, block: &Checked) -> Option<Arc<Path>> {
        let path = Some(block.text("users")).filter(|path| !path.is_empty())?;
        if let Some(known) = self.users_known.get(Path::new(path)) {
            return Some(Arc::clone(known));
        }
        let place = block.place("users");
        if let Some(bytes) = self.file(path, &place) {
            match (self.world.experts.users)(path.as_ref(), &bytes) {
                Ok(0) => {
                    let problem = Problem::new(
                        "no-users",
                        &place,
                        format!("`{path}` has no users: weir rejects all requests"),
                    );
                    self.warnings.push(problem.help(format!("weir passwd {path} NAME")));
                }
                Ok(_) => {}
                Err(wrong) => wrong.into_iter().for_each(|line| {
                    let help =
                        format!("rewrite the line with `weir passwd {path} NAME`, or delete it");
                    self.push(Problem::new("bad-value", &place, line).help(help));
                }),
            }
        }
        let path: Arc<Path> = Path::new(path).into();
        self.users.push(Arc::clone(&path));
        self.users_known.insert(Arc::clone(&path));
        Some(path)
    }
}

/// Returns the users of a route.
pub(super) fn basic_auth(compiler: &mut Compiler<'_>, route: &Checked) -> Option<BasicAuth> {
    let users = compiler.users(route)?;
    Some(BasicAuth {
        users,
        realm: realm(route).into(),
        passes_on: route.flag("pass-authorization"),
    })
}

/// Warns of passwords that can be read on the network.
pub(super) fn warn_of_passwords(compiler: &mut Compiler<'_>, document: &Checked, plan: &Plan) {
    let has_users =
        |route: &&Checked| !route.text("users").is_empty() && route.word("scheme") != "https";
    let Some(route) = document.all("route").find(has_users) else { return };
    let is_open = |listener: &&weir_proxy::plan::ListenerPlan| {
        listener.serves == weir_proxy::plan::Serves::Reverse
            && listener.tls.is_none()
            && !listener.proxy_protocol
            && listener.address.network().is_some_and(|address| !address.ip().is_loopback())
    };
    if !plan.client.trusted_proxies.is_empty() {
        return;
    }
    if let Some(listener) = plan.listeners.iter().find(is_open) {
        let message = format!(
            "clients of {} send their passwords unencrypted: it has no `tls`",
            listener.address
        );
        let help = "add scheme=\"https\" to `route`, so that it serves only clients that use TLS";
        compiler
            .warnings
            .push(Problem::new("passwords", &route.place("users"), message).help(help));
    }
}

/// Returns the realm of a challenge.
pub(super) fn realm(block: &Checked) -> String {
    if block.text("realm").is_empty() { "weir".to_owned() } else { block.text("realm").to_owned() }
}
