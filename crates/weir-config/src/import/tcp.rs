//! Connections that are passed on unchanged, in an import: `tcp` blocks. Filled by the dialects,
//! settled and written at the end. Bounds: [`BLOCKS_MAX`] listeners, [`NAMES_MAX`] names.
//!
//! If the source admits clients by a condition that `tcp` does not have, the connections lead to an
//! upstream on which nothing listens, as with routes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use weir_proxy::plan::{Location, UNIX};

use super::draft::{BLOCKS_MAX, Draft};
use super::notes::{Kind, harmless};
use super::tree::{Node, Place};
use super::write::CLOSED_TCP;
use crate::compile::is_same_place;
use crate::reverse::literal;
use crate::texts;
use crate::units::time_text;

/// The only trusted announcer of clients as long as nothing else is known: this machine.
const NOBODY_ELSE: &str = "127.0.0.1";

/// Names, and words of conditions on them, that are examined in one import.
const NAMES_MAX: usize = 20_000;

/// The note on clients that are kept out by a condition that `tcp` does not check.
pub(super) const LET_IN: &str = "`tcp` accepts every client: it now accepts those that this \
    rejected; block them with a firewall";

/// The note if only some are admitted by such a condition.
pub(super) const CLOSES: &str = "`tcp` accepts every client: weir forwards no connections until \
    you name an upstream; block the other clients with a firewall";

/// The target of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lead {
    /// An index of [`Draft::upstreams`].
    Upstream(usize),
    /// Nowhere: they are reset.
    Closed,
}

/// A `tcp` block.
#[derive(Debug, Default)]
pub(super) struct Tcp {
    pub(super) place: Place,
    pub(super) what: String,
    listens: Vec<Listen>,
    /// The target of clients that ask for none of the names; None: these are reset.
    pub(super) to: Option<Lead>,
    /// By the name that a TLS client asks for.
    names: BTreeMap<Lead, Vec<String>>,
    /// All names.
    taken: BTreeSet<String>,
    /// Microseconds, by option.
    times: BTreeMap<&'static str, u64>,
    /// The trusted announcers of clients, as weir writes them.
    pub(super) trusted: BTreeSet<String>,
}

/// An address that clients connect to.
#[derive(Debug)]
struct Listen {
    place: Place,
    what: String,
    address: Location,
    /// `mode` and `group` of a unix socket, as they are written.
    rights: BTreeMap<&'static str, String>,
    /// Connections begin with a header of the PROXY protocol.
    announced: bool,
    /// `tcp-keepalive`, as it is written.
    keepalive: Option<String>,
}

/// The rights of a unix socket: `mode` and `group`, as in the source.
pub(super) type Rights<'n> = [(&'static str, Option<&'n str>); 2];

impl Tcp {
    /// Returns a block for a block of the source.
    pub(super) fn new(place: Place, what: String) -> Tcp {
        Tcp { place, what, ..Tcp::default() }
    }

    /// Whether it has no address to connect to.
    pub(super) fn is_unreachable(&self) -> bool {
        self.listens.is_empty()
    }

    /// Whether names decide.
    pub(super) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Whether all connections begin by announcing their client.
    pub(super) fn is_announced(&self) -> bool {
        !self.listens.is_empty() && self.listens.iter().all(|listen| listen.announced)
    }

    /// Adds an address; one that is taken already is noted.
    pub(super) fn listen(
        &mut self,
        draft: &mut Draft<'_>,
        node: &Node,
        address: &str,
        announced: bool,
        rights: Rights<'_>,
    ) {
        let address = match texts::listener(address).map(|text| Location::read(&text)) {
            Ok(Some(address)) => address,
            Ok(None) => return,
            Err(why) => return draft.lost(node, why),
        };
        let mut all = draft.tcps.iter().flat_map(|tcp| &tcp.listens).chain(&self.listens);
        if let Some(other) = all.find(|other| is_same_place(&other.address, &address)) {
            let why = format!(
                "`{}` of {} takes its connections",
                other.address,
                draft.sources.name(other.place)
            );
            return draft.lost(node, why);
        }
        if draft.tcps.iter().map(|tcp| tcp.listens.len()).sum::<usize>() + self.listens.len()
            >= BLOCKS_MAX
        {
            return draft.lost(node, format!("weir takes at most {BLOCKS_MAX} listeners"));
        }
        let mut checked = BTreeMap::new();
        for (word, text) in rights.into_iter().filter(|_| address.network().is_none()) {
            let text = text.map(if word == "mode" { texts::socket_mode } else { texts::account });
            match text {
                Some(Ok(text)) => drop(checked.insert(word, literal(&text))),
                Some(Err(why)) => draft.lost(node, why),
                None => {}
            }
        }
        let (place, what) = (node.place, node.shown());
        self.listens.push(Listen {
            place,
            what,
            address,
            rights: checked,
            announced,
            keepalive: None,
        });
    }

    /// Sets the keepalive times for clients of the addresses of a line, or of all.
    pub(super) fn ask(&mut self, line: Option<&Node>, keepalive: &str) {
        let is_meant = |listen: &&mut Listen| line.is_none_or(|line| line.place == listen.place);
        for listen in self
            .listens
            .iter_mut()
            .filter(is_meant)
            .filter(|listen| listen.address.network().is_some())
        {
            listen.keepalive = Some(keepalive.to_owned());
        }
    }

    /// Adds the target of clients that ask for a name, unless an earlier one has them. Returns
    /// whether it was added.
    pub(super) fn name(&mut self, name: &str, lead: Lead) -> bool {
        let domains = name
            .match_indices('.')
            .filter(|(at, _)| *at > 0)
            .map(|(at, _)| format!("*{}", &name[at..]));
        if self.taken.contains(name)
            || domains.into_iter().any(|domain| self.taken.contains(&domain))
        {
            return false;
        }
        self.taken.insert(name.to_owned());
        self.names.entry(lead).or_default().push(name.to_owned());
        true
    }

    /// Sets a time, as near as the option allows.
    pub(super) fn time(&mut self, draft: &mut Draft<'_>, node: &Node, name: &'static str, us: u64) {
        let fit = us.clamp(1_000, 86_400_000_000);
        if fit != us {
            draft.different(node, format!("`{name}` has the nearest value that weir allows"));
        }
        self.times.insert(name, fit);
    }

    /// Closes the block: no connection is passed on any more.
    pub(super) fn close(&mut self) {
        self.to = Some(Lead::Closed);
        self.names.clear();
    }

    /// Whether any connection is passed on.
    pub(super) fn leads_somewhere(&self) -> bool {
        self.leads().any(|lead| lead != Lead::Closed)
    }

    fn leads(&self) -> impl Iterator<Item = Lead> {
        self.to.into_iter().chain(self.names.keys().copied())
    }
}

/// Whether `names` more names have room; if not, the caller makes the note.
pub(super) fn has_room(draft: &mut Draft<'_>, names: usize) -> bool {
    draft.tcp_names = draft.tcp_names.saturating_add(names);
    draft.tcp_names <= NAMES_MAX
}

/// Returns the targets of all blocks.
pub(super) fn leads(draft: &Draft<'_>) -> BTreeSet<Lead> {
    draft.tcps.iter().flat_map(Tcp::leads).collect()
}

/// When all listeners are known: an address is for connections or for requests, and the trusted
/// announcers of clients hold for both.
pub(super) fn settle(draft: &mut Draft<'_>) {
    let taken: Vec<Location> =
        draft.listened().iter().map(|at| draft.listens[*at].address.clone()).collect();
    let mut tcps = std::mem::take(&mut draft.tcps);
    for tcp in &mut tcps {
        let is_taken =
            |listen: &Listen| taken.iter().any(|other| is_same_place(other, &listen.address));
        let (gone, kept) = std::mem::take(&mut tcp.listens).into_iter().partition(is_taken);
        tcp.listens = kept;
        let why = "this address takes requests, but `tcp` forwards connections unchanged";
        lose(draft, gone, why);
    }
    settle_trust(draft, &mut tcps);
    tcps.retain(|tcp| !tcp.is_unreachable());
    draft.tcps = tcps;
}

fn lose(draft: &mut Draft<'_>, listens: Vec<Listen>, why: &str) {
    for Listen { place, what, .. } in listens {
        draft.note(place, Kind::Lost, &what, why);
    }
}

/// Sets `trusted-proxies` for the listeners whose clients are announced.
fn settle_trust(draft: &mut Draft<'_>, tcps: &mut [Tcp]) {
    let announced = |tcp: &Tcp| tcp.listens.iter().any(|listen| listen.announced);
    let mut all: BTreeSet<String> = BTreeSet::new();
    for tcp in tcps.iter().filter(|tcp| announced(tcp)) {
        all.extend(tcp.trusted.iter().cloned());
        let is_local = |listen: &Listen| listen.announced && listen.address.network().is_none();
        // The mode of a socket decides which users may connect.
        all.extend(tcp.listens.iter().any(is_local).then(|| UNIX.to_owned()));
    }
    let mut listens = tcps.iter().flat_map(|tcp| &tcp.listens).filter(|listen| listen.announced);
    let Some(place) = listens.next().map(|listen| listen.place) else { return };
    let is_network = |tcp: &Tcp| {
        tcp.listens.iter().any(|listen| listen.announced && listen.address.network().is_some())
    };
    let line = |all: &BTreeSet<String>| {
        format!(
            "trusted-proxies{}",
            all.iter().map(|range| format!(" {}", literal(range))).collect::<String>()
        )
    };
    let same =
        draft.client_lines.get("trusted-proxies").is_some_and(|(other, _)| *other == line(&all));
    if !draft.served().is_empty() && !same {
        let why = "weir takes such connections only from `trusted-proxies`, and also trusts their \
            X-Forwarded-For in requests: run a second weir for it, or name them there if you \
            want that";
        for tcp in tcps {
            let (gone, kept) =
                std::mem::take(&mut tcp.listens).into_iter().partition(|listen| listen.announced);
            tcp.listens = kept;
            lose(draft, gone, why);
        }
        return;
    }
    for tcp in tcps.iter().filter(|tcp| announced(tcp)) {
        let listen = tcp
            .listens
            .iter()
            .find(|listen| listen.announced && listen.address.network().is_some());
        let Some(Listen { place, what, .. }) = listen else { continue };
        if tcp.trusted.is_empty() {
            let why = format!(
                "weir takes the PROXY protocol only from `trusted-proxies`, which are unknown: \
                    write the addresses of the load balancers in place of `{NOBODY_ELSE}`; until \
                    then, no other client can connect"
            );
            draft.note(*place, Kind::Closed, what, why);
        } else {
            let why = "weir takes the PROXY protocol only from `trusted-proxies`: no other client \
                can connect there";
            draft.note(*place, Kind::Different, what, why);
            if all.iter().any(|range| range != UNIX && !tcp.trusted.contains(range)) {
                let why = "weir has one list of `trusted-proxies` for every `listen`: it now \
                    contains all of them";
                draft.note(*place, Kind::Different, what, why);
            }
        }
    }
    if tcps.iter().any(is_network) && all.iter().all(|range| range == UNIX) {
        all.insert(NOBODY_ELSE.to_owned());
    }
    draft.client_lines.insert("trusted-proxies", (line(&all), place));
}

/// Writes all blocks.
pub(super) fn write(out: &mut String, draft: &Draft<'_>) {
    let name = |lead: &Lead| match lead {
        Lead::Closed => literal(CLOSED_TCP),
        Lead::Upstream(at) => literal(&draft.upstreams[*at].name),
    };
    for tcp in &draft.tcps {
        let what: String = harmless(tcp.what.chars().take(80)).collect();
        let _ = writeln!(out, "\n// {} {what}\ntcp {{", draft.sources.short(tcp.place));
        for listen in &tcp.listens {
            let _ = write!(out, "    listen {}", literal(&listen.address.to_string()));
            for (word, value) in &listen.rights {
                let _ = write!(out, " {word}={value}");
            }
            if listen.announced {
                out.push_str(" proxy-protocol=#true");
            }
            if let Some(keepalive) = &listen.keepalive {
                let _ = write!(out, " tcp-keepalive={}", literal(keepalive));
            }
            let _ = writeln!(out, " // {}", draft.sources.short(listen.place));
        }
        for (lead, names) in &tcp.names {
            let names: String = names.iter().map(|name| format!(" {}", literal(name))).collect();
            let _ = writeln!(out, "    sni{names} proxy={}", name(lead));
        }
        if let Some(lead) = &tcp.to {
            let _ = writeln!(out, "    proxy {}", name(lead));
        }
        for (name, us) in
            tcp.times.iter().filter(|(name, _)| **name != "hello-timeout" || tcp.has_names())
        {
            let _ = writeln!(out, "    {name} \"{}\"", time_text(*us));
        }
        out.push_str("}\n");
    }
}
