//! Changes that a running weir cannot make, each with the reason, for the author of the
//! configuration.

use std::fmt::Write as _;
use std::net::SocketAddr;

use weir_config::{AcceptBy, AdminChoice, Config, IoChoice, PinningChoice, UserChoice};
use weir_proxy::plan::{ForwardPlan, Plan};

/// Settings outside the plan, fixed for the life of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fixed {
    workers: Option<u32>,
    io: IoChoice,
    accept_by: AcceptBy,
    pinning: PinningChoice,
    admin: AdminChoice,
    metrics: Option<SocketAddr>,
    user: Option<UserChoice>,
}

/// A change that needs a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    what: String,
    why: &'static str,
}

impl Fixed {
    /// Returns the settings of a configuration.
    pub(crate) fn of(config: &Config) -> Fixed {
        let Config { workers, io, pinning, accept_by, admin, metrics, user, .. } = config;
        let (admin, user) = (admin.clone(), user.clone());
        Fixed {
            workers: *workers,
            io: *io,
            pinning: *pinning,
            accept_by: *accept_by,
            admin,
            metrics: *metrics,
            user,
        }
    }

    /// Returns the differences of a configuration, or from the plan in force, that need a restart.
    pub(super) fn refused(&self, config: &Config, plan: &Plan) -> Vec<Refused> {
        let new = Fixed::of(config);
        let mut all = Vec::new();
        let mut check = |same: bool, what: &str, why| {
            if !same {
                all.push(Refused { what: format!("`{what}`"), why });
            }
        };
        check(
            self.workers == new.workers,
            "workers",
            "weir creates threads and their shared state at the start",
        );
        check(self.io == new.io, "io", "weir chooses the driver at the start");
        check(
            self.pinning == new.pinning,
            "pinning",
            "weir pins workers to their cores at the start",
        );
        let why = "weir sets up the distribution of connections in the kernel at the start";
        check(self.accept_by == new.accept_by, "accept-by", why);
        check(self.admin == new.admin, "admin", "weir opens the socket at the start");
        check(self.metrics == new.metrics, "metrics", "weir opens the listener at the start");
        check(self.user == new.user, "user", "weir changes its user at the start");
        let log = |plan: &Plan| plan.access_log.as_ref().map(|log| log.destination.clone());
        let why =
            "weir decides at the start whether and where it writes a log; its format can change";
        check(log(plan) == log(&config.plan), "access-log destination", why);
        let accounts = |plan: &Plan| plan.shield.as_ref().map(|shield| shield.seed.accounts());
        let same = accounts(plan).zip(accounts(&config.plan)).is_none_or(|(old, new)| old == new);
        check(same, "shield table", "it holds the state of clients, and cannot grow");
        all.extend(forward(plan.forward.as_ref(), config.plan.forward.as_ref()));
        let pool = |plan: &Plan| {
            plan.forward.as_ref().map(|forward| plan.upstreams[forward.upstream].pool)
        };
        if all.iter().all(|refused| refused.what != "`forward`") && pool(plan) != pool(&config.plan)
        {
            all.push(Refused {
                what: "`forward pool`".to_owned(),
                why: "its connections are opened for one kind of pool",
            });
        }
        all
    }
}

fn forward(old: Option<&ForwardPlan>, new: Option<&ForwardPlan>) -> Vec<Refused> {
    let refused = |what: &str, why| vec![Refused { what: format!("`{what}`"), why }];
    let (Some(old), Some(new)) = (old, new) else {
        let same = old.is_none() && new.is_none();
        return if same {
            Vec::new()
        } else {
            refused("forward", "weir sets up the resolver at the start")
        };
    };
    let mut all = Vec::new();
    if old.users != new.users {
        all.extend(refused(
            "forward users",
            "weir opens the file at the start; it rereads the content when it changes",
        ));
    }
    if old.resolvers != new.resolvers {
        all.extend(refused("forward resolver", "weir sets up the resolver at the start"));
    }
    all
}

/// Returns a report for people.
pub(super) fn report(all: &[Refused]) -> String {
    let mut text = String::new();
    for Refused { what, why } in all {
        let _ = writeln!(text, "weir: {what} needs a restart: {why}");
    }
    text.push_str(
        "  help: restart weir, or undo that change; no part of this configuration is in force\n",
    );
    text
}
