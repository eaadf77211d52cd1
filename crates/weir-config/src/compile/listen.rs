//! `listen` -> plan: the listeners, the clients that may connect to them, and conflicts between two
//! of them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use weir_proxy::plan::{Congestion, ListenerPlan, Location, Serves, Tuning, UNIX};

use super::{BLOCKS_MAX, Compiler, narrow, sockets, tcp};
use crate::Account;
use crate::check::Checked;
use crate::problem::{Problem, Span};
use crate::steps;

impl Compiler<'_> {
    /// Returns all listeners, those of the forward proxy and of `tcp` last.
    pub(super) fn listeners(&mut self, document: &Checked) -> Vec<ListenerPlan> {
        let mut seen = Seen::default();
        let mut listeners = Vec::new();
        let forward = document.all("forward").flat_map(|forward| forward.all("listen"));
        let blocks = document.all("listen").map(|block| (block, Serves::Reverse));
        let blocks = blocks
            .chain(forward.map(|block| (block, Serves::Forward)))
            .chain(tcp::listeners(document));
        for (at, (block, serves)) in blocks.enumerate() {
            if at == BLOCKS_MAX {
                let message = format!(
                    "more than {BLOCKS_MAX} of `listen` in the file, including those of `forward` \
                        and `tcp`"
                );
                self.push(Problem::new("too-many", &block.span, message));
                break;
            }
            let Some(address) =
                Location::read(block.text("address")).filter(|_| !block.text("address").is_empty())
            else {
                continue;
            };
            if let Some((other, span)) = seen.add(&address, &block.place("address")) {
                let message = format!("`{address}` is already in use by `{other}`");
                let problem = Problem::new("conflict", &block.place("address"), message)
                    .related(&span, "first here");
                self.push(problem);
            }
            tcp::check_listener(self, block, serves);
            let (mode, group) = rights(self, block, &address, serves);
            let (backlog, tls) = (narrow(block.number("backlog")), self.tls(block, serves));
            let protocols = self.protocols(block, serves, tls.is_some());
            let proxy_protocol = self.proxy_protocol(block, document);
            let (transparent, congestion, tuning) = kernel_options(self, block, &address, serves);
            listeners.push(ListenerPlan {
                address,
                mode,
                group,
                backlog,
                serves,
                tls,
                protocols,
                proxy_protocol,
                transparent,
                congestion,
                tuning,
            });
        }
        listeners
    }

    /// Whether clients of a listener come through load balancers.
    fn proxy_protocol(&mut self, block: &Checked, document: &Checked) -> bool {
        let is_on = block.flag("proxy-protocol");
        let trusted: Vec<&str> =
            document.all("client").flat_map(|client| client.texts("trusted-proxies")).collect();
        if is_on
            && !trusted.is_empty()
            && block.text("address").starts_with(UNIX)
            && !trusted.contains(&UNIX)
        {
            let message = "no client can connect: `proxy-protocol` accepts only `trusted-proxies`, \
                which do not include unix sockets";
            let help = format!("client {{ trusted-proxies \"{UNIX}\"; }}");
            self.push(Problem::new("conflict", &block.place("proxy-protocol"), message).help(help));
        }
        if is_on && trusted.is_empty() {
            let message = "no client can connect: `proxy-protocol` accepts only `trusted-proxies`, \
                and none are set";
            let help =
                "client { trusted-proxies \"ADDRESS\"; } with the addresses of the load balancers";
            self.push(Problem::new("conflict", &block.place("proxy-protocol"), message).help(help));
        }
        is_on
    }
}

/// Places of listeners, and where they are written: see [`is_same_place`].
#[derive(Default)]
struct Seen {
    /// The first of each place without its scope: its number, and as it is written.
    first: HashMap<Location, (usize, Location, Span)>,
    /// By port and family: the first place of all, and the first wildcard address.
    ports: HashMap<(u16, bool), [Option<Location>; 2]>,
}

impl Seen {
    /// Adds a place. Returns the first earlier one that conflicts with it.
    fn add(&mut self, place: &Location, span: &Span) -> Option<(Location, Span)> {
        steps::add(1);
        let bare = |place: &Location| match place.network() {
            Some(address) => Location::Network(SocketAddr::new(address.ip(), address.port())),
            None => place.clone(),
        };
        let network = place.network().filter(|address| address.port() != 0);
        let ports = network
            .map(|address| self.ports.entry((address.port(), address.is_ipv4())).or_default());
        let is_wild = network.is_some_and(|address| address.ip().is_unspecified());
        let near = ports
            .as_deref()
            .map_or([None, None], |[any, wild]| [any.as_ref().filter(|_| is_wild), wild.as_ref()]);
        let near =
            near.into_iter().flatten().chain([place]).filter(|near| is_same_place(near, place));
        let found =
            near.filter_map(|near| self.first.get(&bare(near))).min_by_key(|(number, ..)| *number);
        let found = found.map(|(_, place, span)| (place.clone(), span.clone()));
        if let Some([any, wild]) = ports {
            any.get_or_insert_with(|| place.clone());
            is_wild.then(|| wild.get_or_insert_with(|| place.clone()));
        }
        let number = self.first.len();
        self.first.entry(bare(place)).or_insert_with(|| (number, place.clone(), span.clone()));
        found
    }
}

/// Returns the kernel options of a listener: whether it takes connections to any address, the
/// congestion controls of these, and options of its socket.
fn kernel_options(
    compiler: &mut Compiler<'_>,
    block: &Checked,
    address: &Location,
    serves: Serves,
) -> (bool, Congestion, Option<Arc<Tuning>>) {
    let (transparent, congestion) = (block.flag("transparent"), sockets::congestion(block));
    let words = [("transparent", transparent), ("congestion", congestion != Congestion::default())];
    let words = words
        .into_iter()
        .filter_map(|(word, is_on)| is_on.then_some(word))
        .chain(sockets::chosen(block));
    for word in words.filter(|_| address.network().is_none()) {
        let message = format!("`{word}` needs a TCP listener, but `{address}` is a unix socket");
        compiler.push(Problem::new("conflict", &block.place(word), message));
    }
    if !matches!(serves, Serves::Tcp(_)) {
        sockets::check_undivided(compiler, block, "a `listen` of `tcp`");
    }
    sockets::check_arms(compiler, block);
    if transparent && serves == Serves::Forward {
        let message =
            "`transparent` has no use in `forward`: its clients connect to the proxy itself";
        let help = "leave it out; for clients that do not know of weir, use `listen` at the top \
            and an upstream with `original-destination`";
        compiler.push(Problem::new("conflict", &block.place("transparent"), message).help(help));
    }
    (transparent, congestion, sockets::tuning(block))
}

/// Returns the mode and the group of a unix socket.
fn rights(
    compiler: &mut Compiler<'_>,
    block: &Checked,
    address: &Location,
    serves: Serves,
) -> (u32, Option<u32>) {
    let (mode, group) = (block.text("mode"), block.text("group"));
    if address.network().is_some() {
        if let Some(word) = ["mode", "group"].into_iter().find(|word| !block.text(word).is_empty())
        {
            let message = format!("`{word}` needs a unix socket, but `{address}` is a TCP address");
            compiler.push(Problem::new("conflict", &block.place(word), message));
        }
    } else if serves == Serves::Forward {
        let message = "a forward proxy must listen on TCP: its rules need addresses of clients";
        compiler.push(
            Problem::new("conflict", &block.place("address"), message)
                .help("listen \"127.0.0.1:3128\""),
        );
    }
    let number =
        Some(group).filter(|group| !group.is_empty()).map(compiler.world.experts.group).transpose();
    let number = number.unwrap_or_else(|Account { message, help, .. }| {
        compiler.push(Problem::new("account", &block.place("group"), message).help(help));
        None
    });
    (u32::from_str_radix(mode, 8).unwrap_or(0o660), number)
}

/// Whether one socket takes the other's connections. Port 0 is a new port each time.
pub fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let wildcard = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0
        && a.port() == b.port()
        && a.is_ipv4() == b.is_ipv4()
        && (wildcard || a.ip() == b.ip())
}

/// Whether two places of listeners conflict.
pub fn is_same_place(a: &Location, b: &Location) -> bool {
    match (a, b) {
        (Location::Network(a), Location::Network(b)) => collide(*a, *b),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the result is the first earlier place that conflicts. How: all pairs and triples of
    //! a few places, against the definition.

    use super::*;

    #[test]
    fn the_first_that_takes_the_same_is_found() {
        let texts = [
            "0.0.0.0:80",
            "10.0.0.1:80",
            "10.0.0.2:80",
            "10.0.0.1:0",
            "[::]:80",
            "[::1]:80",
            "[fe80::1%1]:80",
            "[fe80::1%2]:80",
            "unix:/a",
            "unix:/b",
        ];
        let places = texts.map(|text| Location::read(text).expect("a place"));
        let pairs = || places.iter().flat_map(|a| places.iter().map(move |b| [a, b]));
        for all in pairs().flat_map(|[a, b]| places.iter().map(move |c| [a, b, c])) {
            let mut seen = Seen::default();
            for (at, place) in all.iter().enumerate() {
                let wanted = all[..at].iter().position(|before| is_same_place(before, place));
                let found = seen.add(place, &(at..at + 1));
                assert_eq!(found, wanted.map(|at| (all[at].clone(), at..at + 1)), "{all:?}");
            }
        }
    }
}
