//! Settings of rivals for which no single value is right: candidates by rival and load, of which
//! `run/sweep.rs` takes the best.
//!
//! Read by `run/rounds.rs`; `run/settings.rs` writes what is chosen into a configuration. weir has
//! its defaults but for `queue-size` from 1,000 clients on. Bound: three candidates for a kind of
//! cell.

use super::cache::Cacher;
use super::cells::{Cell, Closed, Load, Origin, RequestKind};
use super::contenders::{Contender, What};

/// From this length of a response on, nginx may copy it in fewer pieces, bytes.
const LARGE_BYTES: u64 = 16 << 10;

/// One way to set a rival, as changes of its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// What the report calls it.
    pub(crate) name: &'static str,
    /// Texts that each occur once in the configuration, and their replacements.
    pub(crate) changes: &'static [(&'static str, &'static str)],
}

/// The configuration as it is written without a sweep.
pub(crate) const USUAL: Tuning = Tuning { name: "as written", changes: &[] };

/// HAProxy stops keeping upstream connections once it uses this share of its descriptors: 20 and 25
/// % by default, which 4,000 clients exceed.
const HAPROXY: &[Tuning] =
    &[Tuning { name: "tune.pool-low-fd-ratio 20 (default)", changes: &[] }, HAPROXY_KEEPS];

/// HAProxy that keeps them up to 90 and 95 %.
pub(crate) const HAPROXY_KEEPS: Tuning = Tuning {
    name: "tune.pool-low-fd-ratio 90, high 95",
    changes: &[(
        "    tune.maxaccept 500\n",
        "    tune.maxaccept 500\n    tune.pool-low-fd-ratio 90\n    tune.pool-high-fd-ratio 95\n",
    )],
};

/// nginx as a proxy: the first buffer holds a head and what comes with it.
const NGINX: &[Tuning] = &[
    Tuning { name: "proxy_buffer_size 4k (default)", changes: &[] },
    Tuning {
        name: "proxy_buffer_size 32k",
        changes: &[(
            "    proxy_buffers 16 32k;\n",
            "    proxy_buffer_size 32k;\n    proxy_buffers 16 32k;\n",
        )],
    },
];

/// nginx with stored responses: a small file is cheaper to read than to be sent by the kernel.
const NGINX_CACHE: &[Tuning] = &[
    Tuning { name: "sendfile on", changes: &[] },
    Tuning { name: "sendfile off", changes: &[("    sendfile on;\n", "    sendfile off;\n")] },
];

/// Varnish: how long a thread waits for the next request of its client before it hands the
/// connection over.
const VARNISH: &[Tuning] = &[
    Tuning { name: "timeout_linger 0.05 (default)", changes: &[] },
    Tuning {
        name: "timeout_linger 0",
        changes: &[("# linger in s: 0.05\n", "# linger in s: 0\n")],
    },
];

/// The candidates of a contender under a load; one or none where there is nothing to choose.
pub(crate) fn candidates(contender: Contender, load: Closed) -> &'static [Tuning] {
    match contender.what {
        What::Haproxy => HAPROXY,
        What::Nginx if load.body >= LARGE_BYTES => NGINX,
        What::Caching(Cacher::Nginx) => NGINX_CACHE,
        What::Caching(Cacher::Varnish) => VARNISH,
        _ => &[],
    }
}

/// Returns the load by which candidates are compared for a cell: its own, or a closed loop on as
/// many connections where the cell runs by the clock. None where connections are idle or programs
/// start fresh in each run: those have fixed settings.
pub(crate) fn probe(cell: &Cell) -> Option<Closed> {
    let plain = |connections| Some(Closed { connections, body: 3, kind: RequestKind::Minimal });
    match cell.load {
        Load::Closed(closed) => Some(closed),
        Load::HalfOfNginx { connections, .. }
        | Load::Fixed { connections, .. }
        | Load::Flood { connections, .. } => plain(connections),
        _ => None,
    }
}

/// What a choice is valid for: cells that are alike in all of this are of one kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Kind {
    contender: &'static str,
    load: Closed,
    secure: Option<super::tls::Secure>,
    streams: Option<u32>,
    origin: Origin,
}

impl Kind {
    /// The kind of a cell for a contender.
    pub(crate) fn of(contender: Contender, cell: &Cell, load: Closed) -> Kind {
        Kind {
            contender: contender.name,
            load,
            secure: cell.secure,
            streams: cell.streams,
            origin: cell.origin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::catalogue::EXPERIMENTS;
    use crate::bench::experiment::cells::Axes;
    use crate::bench::experiment::contenders::{CONTENDERS, contender};

    /// The time of a sweep grows with them.
    const CANDIDATES_MAX: usize = 3;

    #[test]
    fn every_choice_has_a_first_that_changes_nothing_and_few_others() {
        let load = |body| Closed { connections: 64, body, kind: RequestKind::Minimal };
        let mut chosen_among = 0;
        for contender in CONTENDERS {
            for candidates in [3, 1 << 20].map(|body| candidates(*contender, load(body))) {
                assert!(
                    candidates.len() != 1 && candidates.len() <= CANDIDATES_MAX,
                    "{}",
                    contender.name
                );
                assert!(
                    candidates.first().is_none_or(|first| first.changes.is_empty()),
                    "{}",
                    contender.name
                );
                chosen_among += candidates.len();
            }
            let is_ours = matches!(contender.what, What::Weir(_) | What::Caching(Cacher::Weir));
            assert!(
                !is_ours || candidates(*contender, load(3)).is_empty(),
                "weir has its defaults"
            );
        }
        assert!(chosen_among > 10, "{chosen_among}");
    }

    #[test]
    fn cells_of_the_same_load_share_a_choice_and_others_do_not() {
        let experiment = EXPERIMENTS
            .iter()
            .find(|experiment| experiment.name == "targets")
            .expect("it is there");
        let cells = (experiment.cells)(&Axes::default());
        let find = |name: &str| cells.iter().find(|cell| cell.name == name).expect("a cell");
        let haproxy = contender("haproxy").expect("it is there");
        let kind = |name: &str| probe(find(name)).map(|load| Kind::of(haproxy, find(name), load));
        assert_eq!(kind("c64"), kind("fixed-rate"), "the same connections and requests");
        assert_ne!(kind("c64"), kind("c4000"));
        assert_ne!(kind("c64"), kind("body-64k"));
        assert_eq!(kind("idle"), None);
        let other = find("c64").clone().from(Origin::Weir);
        assert_ne!(
            probe(&other).map(|load| Kind::of(haproxy, &other, load)),
            kind("c64"),
            "another origin"
        );
    }
}
