//! Obstacles to an interception, checked before anything is changed, each with a remedy.

use std::fmt;
use std::fs;

use weir_io::{Interfaces, Link, Namespace, TUN_DEVICE, Tun, check_congestion};

use super::{Route, cores};
use crate::failure::Failure;
use crate::log::Event;

/// The findings.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Interception is impossible.
    obstacles: Vec<(String, String)>,
    /// It is possible, but the operator may have meant something else.
    notes: Vec<String>,
    is_forbidden: bool,
}

impl Found {
    /// Whether interception is possible.
    pub(super) fn is_clear(&self) -> bool {
        self.obstacles.is_empty()
    }

    /// Adds a finding that is not an obstacle.
    pub(super) fn note(&mut self, what: String) {
        self.notes.push(what);
    }

    pub(super) fn obstacle(&mut self, what: impl Into<String>, help: impl Into<String>) {
        self.obstacles.push((what.into(), help.into()));
    }

    /// Checks whether the same core receives both sides of a connection, and notes what prevents
    /// that.
    pub(super) fn judge_cores(&mut self, route: &Route) {
        for name in [&route.client, &route.server] {
            if matches!(Interfaces::here().and_then(|all| all.index(name)), Ok(None)) {
                return;
            }
            if !fs::exists(format!("/sys/class/net/{name}")).unwrap_or(false) {
                self.notes.push(format!(
                    "/sys does not show {name}, as in another network namespace: which core \
                        receives what is not known"
                ));
                return;
            }
        }
        let judged = cores::judge(
            &cores::read(&route.client),
            &cores::read(&route.server),
            &cores::Machine::here(),
        );
        if judged.is_empty() {
            self.notes.push("both sides of a connection are received by the same core".to_owned());
        }
        for cores::Judgement { what, mend } in judged {
            let lines: String = mend.iter().map(|command| format!("\n  help: {command}")).collect();
            self.notes.push(format!("{what}{lines}"));
        }
    }

    /// Prints the notes as warnings.
    ///
    /// # Errors
    /// An obstacle.
    pub(super) fn refuse(self) -> Result<(), Failure> {
        if self.is_clear() {
            self.notes.iter().for_each(|note| Event::InterceptObstacle.says(note).log());
            return Ok(());
        }
        let lines = self
            .obstacles
            .iter()
            .map(|(what, help)| format!("weir: {what}\n  help: {help}\n"))
            .collect();
        Err(if self.is_forbidden { Failure::Privilege(lines) } else { Failure::Running(lines) })
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.obstacles
            .iter()
            .try_for_each(|(what, help)| writeln!(f, "error: {what}\n  help: {help}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        if self.is_clear() { writeln!(f, "no obstacles found") } else { Ok(()) }
    }
}

/// Checks everything.
pub(super) fn look(route: &Route) -> Found {
    let mut found = Found::default();
    if let Err(error) = Namespace::create() {
        found.is_forbidden = true;
        found.obstacle(
            format!("cannot create a network namespace: {error}"),
            "run as root: it needs CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF",
        );
    }
    if !found.is_forbidden
        && let Err(error) = weir_bpf::Intercept::probe()
    {
        found.is_forbidden = matches!(error, weir_bpf::BpfError::NotPermitted);
        found.obstacle(
            format!("the kernel rejects the programs that redirect connections to weir: {error}"),
            "run as root, on Linux 6.6 or later with CONFIG_NET_XGRESS and BPF; with another \
                kernel, use nftables to redirect connections to `weir run` \
                (docs/transparent.md#lead-packets-to-weir)",
        );
    }
    if route.client == route.server {
        found.obstacle(
            format!(
                "{} is both sides: weir could not tell which packets come from \
                clients",
                route.client
            ),
            "name the interface on which packets from clients arrive, and the interface on which \
                they leave",
        );
    }
    let [client, server] = [&route.client, &route.server].map(|name| interface(&mut found, name));
    if server.is_some_and(|link| !link.is_ethernet()) {
        found.obstacle(
            format!(
                "{} is not Ethernet: weir cannot intercept packets that leave there",
                route.server
            ),
            "a tunnel or ppp can be the client side only",
        );
    }
    if let (Some(client), Some(server)) = (client, server)
        && client.mtu != server.mtu
    {
        let (narrow, wide) = (client.mtu.min(server.mtu), client.mtu.max(server.mtu));
        found.notes.push(format!(
            "weir sends packets of up to {narrow} bytes on both sides, although one side supports \
                {wide}"
        ));
    }
    if weir_bpf::Intercept::is_at(&route.server) {
        found.notes.push(format!(
            "another `weir intercept` intercepts connections that leave by {}: for ports that both \
                name, the later one gets the connections",
            route.server
        ));
    }
    if client.is_some() {
        forwarding(&mut found, &route.client);
    }
    if route.connect.ahead().is_some()
        && let Err(error) = Tun::probe()
    {
        found.obstacle(
            format!("no TUN devices to read first packets: {TUN_DEVICE}: {error}"),
            "`modprobe tun` may help, or remove --connect",
        );
    }
    for name in &route.congestion {
        if let Err(error) = check_congestion(name) {
            found.obstacle(error.to_string(), "use another one, or remove the option");
        }
    }
    found
}

fn interface(found: &mut Found, name: &str) -> Option<Link> {
    let mut interfaces = Interfaces::here().ok()?;
    let Ok(Some(index)) = interfaces.index(name) else {
        let known: Vec<String> = fs::read_dir("/sys/class/net")
            .map(|all| all.filter_map(|one| one.ok()?.file_name().into_string().ok()).collect())
            .unwrap_or_default();
        found.obstacle(
            format!("no interface {name}"),
            format!("this machine has {}", known.join(", ")),
        );
        return None;
    };
    let link = interfaces.link(index).ok()?;
    if !link.is_up {
        found.notes.push(format!("{name} is down: ip link set {name} up"));
    }
    Some(link)
}

/// Checks whether packets that arrive on an interface are forwarded at all.
fn forwarding(found: &mut Found, client: &str) {
    let is_on = |family: &str| {
        let read = fs::read_to_string(format!("/proc/sys/net/{family}/conf/{client}/forwarding"));
        read.is_ok_and(|text| text.trim() != "0")
    };
    match (is_on("ipv4"), is_on("ipv6")) {
        (false, false) => {
            let what = format!(
                "this machine does not forward packets that arrive on {client}, so weir has no \
                    connections to intercept"
            );
            found.obstacle(
                what,
                "sysctl net.ipv4.ip_forward=1, and for IPv6 net.ipv6.conf.all.forwarding=1",
            );
        }
        (false, true) => {
            found.notes.push("IPv4 is not forwarded: sysctl net.ipv4.ip_forward=1".to_owned())
        }
        (true, false) => found
            .notes
            .push("IPv6 is not forwarded: sysctl net.ipv6.conf.all.forwarding=1".to_owned()),
        (true, true) => {}
    }
}
