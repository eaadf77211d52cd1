//! `listen` -> plan: where clients are listened for, who may connect there, and which two can't be beside each other.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_proxy::plan::{Congestion, ListenerPlan, Location, Serves, Tuning, UNIX};

use super::{BLOCKS_MAX, Compiler, narrow, sockets, tcp};
use crate::Account;
use crate::check::Checked;
use crate::problem::{Problem, Span};

impl Compiler<'_> {
    /// All listeners, those of the forward proxy and of `tcp` last.
    pub(super) fn listeners(&mut self, document: &Checked) -> Vec<ListenerPlan> {
        let mut seen: Vec<(Location, Span)> = Vec::new();
        let mut listeners = Vec::new();
        let forward = document.all("forward").flat_map(|forward| forward.all("listen"));
        let blocks = document.all("listen").map(|block| (block, Serves::Reverse));
        let blocks = blocks.chain(forward.map(|block| (block, Serves::Forward))).chain(tcp::listeners(document));
        for (block, serves) in blocks.take(BLOCKS_MAX) {
            let Some(address) = Location::read(block.text("address")).filter(|_| !block.text("address").is_empty())
            else {
                continue;
            };
            if let Some((other, span)) = seen.iter().find(|(other, _)| is_same_place(other, &address)) {
                let message = format!("`{address}` is already listened on by `{other}`");
                let problem = Problem::new("conflict", &block.place("address"), message).related(span, "first here");
                self.push(problem);
            }
            seen.push((address.clone(), block.place("address")));
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
        let trusted: Vec<&str> = document.all("client").flat_map(|client| client.texts("trusted-proxies")).collect();
        if is_on && !trusted.is_empty() && block.text("address").starts_with(UNIX) && !trusted.contains(&UNIX) {
            let message = "nobody may connect: `proxy-protocol` is for `trusted-proxies` only, and who comes over a unix socket is none";
            let help = format!("client {{ trusted-proxies \"{UNIX}\"; }}");
            self.push(Problem::new("conflict", &block.place("proxy-protocol"), message).help(help));
        }
        if is_on && trusted.is_empty() {
            let message = "nobody may connect: `proxy-protocol` is for `trusted-proxies` only, and there are none";
            let help = "client { trusted-proxies \"ADDRESS\"; } with the addresses of the load balancers";
            self.push(Problem::new("conflict", &block.place("proxy-protocol"), message).help(help));
        }
        is_on
    }
}

/// What the kernel is asked of a listener besides: whether it takes connections to any address, which congestion control they have, and options of
/// its socket.
fn kernel_options(
    compiler: &mut Compiler<'_>,
    block: &Checked,
    address: &Location,
    serves: Serves,
) -> (bool, Congestion, Option<Arc<Tuning>>) {
    let (transparent, congestion) = (block.flag("transparent"), sockets::congestion(block));
    let words = [("transparent", transparent), ("congestion", congestion != Congestion::default())];
    let words = words.into_iter().filter_map(|(word, is_on)| is_on.then_some(word)).chain(sockets::chosen(block));
    for word in words.filter(|_| address.network().is_none()) {
        let message = format!("`{word}` is for listeners of TCP, and `{address}` is none");
        compiler.push(Problem::new("conflict", &block.place(word), message));
    }
    if !matches!(serves, Serves::Tcp(_)) {
        sockets::check_undivided(compiler, block, "a `listen` of `tcp`");
    }
    sockets::check_arms(compiler, block);
    if transparent && serves == Serves::Forward {
        let message = "clients of a forward proxy know that they ask a proxy, and have connected to nobody else";
        let help = "leave it out; `listen` at the top with an upstream of `original-destination` serves who does not know of weir";
        compiler.push(Problem::new("conflict", &block.place("transparent"), message).help(help));
    }
    (transparent, congestion, sockets::tuning(block))
}

/// The mode and the group of a unix socket.
fn rights(compiler: &mut Compiler<'_>, block: &Checked, address: &Location, serves: Serves) -> (u32, Option<u32>) {
    let (mode, group) = (block.text("mode"), block.text("group"));
    if address.network().is_some() {
        if let Some(word) = ["mode", "group"].into_iter().find(|word| !block.text(word).is_empty()) {
            let message = format!("`{word}` is for unix sockets, and `{address}` is none");
            compiler.push(Problem::new("conflict", &block.place(word), message));
        }
    } else if serves == Serves::Forward {
        let message = "a forward proxy listens on TCP: its rules are about addresses of clients";
        compiler.push(Problem::new("conflict", &block.place("address"), message).help("listen \"127.0.0.1:3128\""));
    }
    let number = Some(group).filter(|group| !group.is_empty()).map(compiler.world.experts.group).transpose();
    let number = number.unwrap_or_else(|Account { message, help, .. }| {
        compiler.push(Problem::new("account", &block.place("group"), message).help(help));
        None
    });
    (u32::from_str_radix(mode, 8).unwrap_or(0o660), number)
}

/// Whether one socket takes what the other is for. Port 0 is a new port each time.
pub fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let wildcard = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && a.is_ipv4() == b.is_ipv4() && (wildcard || a.ip() == b.ip())
}

/// The same of all places where clients are listened for.
pub fn is_same_place(a: &Location, b: &Location) -> bool {
    match (a, b) {
        (Location::Network(a), Location::Network(b)) => collide(*a, *b),
        _ => a == b,
    }
}
