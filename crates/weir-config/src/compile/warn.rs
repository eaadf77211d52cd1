//! Warns of valid but unlikely configurations: upstreams that nothing leads to, redirects to the
//! current place of a client, a log in a folder that does not exist. Called by `compile`.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;

use weir_proxy::plan::Location;

use super::{Compiler, tcp};
use crate::check::Checked;
use crate::problem::Problem;
use crate::{Arrival, CheckArrival};

impl Compiler<'_> {
    /// Warns of everything that is odd in the whole.
    pub(super) fn warn(&mut self, document: &Checked) {
        let routes = document.all("route").map(|route| route.text("proxy"));
        let parts = document
            .all("route")
            .flat_map(|route| route.all("split"))
            .map(|split| split.text("upstream"));
        let used: HashSet<&str> = routes
            .chain(parts)
            .chain(tcp::led_to(document))
            .chain(document.all("upstream").map(|one| one.text("fallback")))
            .collect();
        for upstream in document.all("upstream") {
            let name = upstream.text("name");
            // A wrong name has been reported.
            if name.is_empty() || used.contains(name) {
                continue;
            }
            let message =
                format!("no route uses the upstream `{name}`: its servers get no requests");
            let help =
                format!("add a route, such as: route path=\"/{name}\" {{ proxy \"{name}\"; }}");
            self.warnings.push(Problem::new("unused", &upstream.place("name"), message).help(help));
        }
        let speaks_tls = document.all("listen").any(|listen| listen.all("tls").next().is_some());
        self.warnings.extend(document.all("route").filter(|_| speaks_tls).filter_map(circle));
        if let Some(log) = document.all("access-log").next() {
            self.check_folder(log);
        }
        self.warnings.extend(arrival(document, self.world.experts.arrival));
    }

    /// Checks the folder of the access log.
    fn check_folder(&mut self, log: &Checked) {
        let path = Path::new(log.text("destination"));
        let Some(folder) = path.parent().filter(|folder| folder.is_absolute()) else { return };
        // An existing folder cannot be read as a file, which is another error.
        if (self.world.read)(folder).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            let folder = folder.display();
            let message = format!(
                "the directory {folder} for the access log does not exist: weir would not start"
            );
            let help = format!("create it: install -d -o USER {folder}");
            self.warnings
                .push(Problem::new("no-folder", &log.place("destination"), message).help(help));
        }
    }
}

/// Returns the problem of a redirect to the same URL over TLS that also applies to TLS clients.
fn circle(route: &Checked) -> Option<Problem> {
    let redirect = route.all("redirect").next().filter(|_| route.chosen("scheme").is_none())?;
    let is_circle = redirect.text("to") == "https://$host$request_uri";
    let message = "clients that use TLS are redirected to the same URL in a loop";
    let help = "add scheme=\"http\" to `route`, so that it serves only clients without TLS";
    is_circle.then(|| Problem::new("circle", &redirect.place("to"), message).help(help))
}

/// Returns problems with the arrival of packets at transparent listeners, once for each family.
fn arrival(document: &Checked, expert: CheckArrival<'_>) -> Vec<Problem> {
    let listeners =
        document.all("listen").chain(document.all("tcp").flat_map(|tcp| tcp.all("listen")));
    let mut asked = Vec::new();
    for listen in listeners.filter(|listen| listen.flag("transparent")) {
        let Some(address) =
            Location::read(listen.text("address")).and_then(|location| location.network())
        else {
            continue;
        };
        let needed = Arrival::ToSockets { is_ipv6: address.is_ipv6() };
        if !asked.iter().any(|(other, _)| *other == needed) {
            asked.push((needed, listen.place("transparent")));
        }
    }
    // In other modes the connections on both sides differ.
    let keeps = document.all("upstream").find(|upstream| {
        upstream.text("source") == "client" && super::destination::original(upstream).is_some()
    });
    if let Some(upstream) = keeps.filter(|_| !asked.is_empty()) {
        asked.push((Arrival::WithKeptPorts, upstream.place("source")));
    }
    let warning = |(needed, place)| {
        let (message, help) = expert(needed)?;
        Some(Problem::new("arrival", &place, message).help(help))
    };
    asked.into_iter().filter_map(warning).collect()
}
