//! `weir intercept check --probe`: checks that servers' replies to clients return through this
//! machine, on the right side. It begins one connection from the address of a client, and gives it
//! up when a reply has arrived. It changes nothing, and the client itself replies with a reset, as
//! to any unknown packet.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use weir_io::{Answer, Answers, Attempt, Interfaces, Outbound, Outcome, local_addresses};

use super::Route;
use super::obstacles::Found;
use crate::failure::Failure;

/// Longest wait for a reply; the first packet is sent again after a second.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is probed.
#[derive(Args, Debug, Clone, Copy)]
pub(super) struct ProbeArgs {
    /// With check only: begin a connection to this server as --probe-from, and report where its
    /// reply arrives
    #[arg(long, value_name = "ADDRESS:PORT", requires = "probe_from")]
    probe: Option<SocketAddr>,
    /// Client address for --probe
    #[arg(long, value_name = "ADDRESS", requires = "probe")]
    probe_from: Option<IpAddr>,
}

/// A server, and a client for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    server: SocketAddr,
    client: IpAddr,
}

impl ProbeArgs {
    /// Returns what to probe, if anything.
    ///
    /// # Errors
    /// The probe makes no sense, and why.
    pub(super) fn ends(self, is_check: bool) -> Result<Option<Ends>, Failure> {
        let (Some(server), Some(client)) = (self.probe, self.probe_from) else { return Ok(None) };
        let wrong = |text: String| Err(Failure::Usage(format!("weir: {text}\n")));
        if !is_check {
            return wrong("--probe is for `weir intercept check`".to_owned());
        }
        if server.is_ipv6() != client.is_ipv6() {
            return wrong(format!(
                "--probe {server} --probe-from {client}: one is IPv4, and the other is IPv6"
            ));
        }
        if server.port() == 0 || server.ip().is_unspecified() || client.is_unspecified() {
            return wrong(format!(
                "--probe {server} --probe-from {client}: no machine has such an address"
            ));
        }
        Ok(Some(Ends { server, client }))
    }
}

impl Found {
    /// Notes where a server's reply comes back, or that it does not.
    pub(super) fn probe(&mut self, route: &Route, ends: Ends) {
        let Ends { server, client } = ends;
        let own = local_addresses().unwrap_or_default();
        if own.contains(&client) || own.contains(&server.ip()) {
            let both = "name a client and a server on other machines";
            return self.obstacle(
                format!("{client} or {} is this machine's own address", server.ip()),
                both,
            );
        }
        match come_back(ends) {
            Err(error) => {
                self.obstacle(
                    format!(
                        "cannot begin a connection to {server} as {client}: \
                    {error}"
                    ),
                    NO_BEGINNING,
                );
            }
            Ok(None) => self.obstacle(
                format!(
                    "no reply of {server} to {client} arrived here \
                    within {} s",
                    PATIENCE.as_secs()
                ),
                format!(
                    "it may be down, or a firewall is in between; or its route to {client} does \
                        not lead through this machine: check with `ip route get {client}` there"
                ),
            ),
            Ok(Some(answer)) => {
                let name =
                    Interfaces::here().and_then(|all| all.name(answer.interface)).ok().flatten();
                let name = name.unwrap_or_else(|| format!("interface {}", answer.interface));
                let said = if answer.is_refusal { "refuses" } else { "accepts" };
                if name == route.server {
                    self.note(format!(
                        "{server} {said} {client}, and its reply came back by \
                        {name}"
                    ));
                } else {
                    self.obstacle(
                        format!(
                            "{server} {said} {client}, but its reply came back by {name}, not \
                            by {}",
                            route.server
                        ),
                        "weir cannot intercept its connections: name the interface that leads \
                            there and back as --server-side, or repair the routes",
                    );
                }
            }
        }
    }
}

const NO_BEGINNING: &str = "run as root; `ip route get` of the server has to lead through \
    --server-side, and a machine has to respond there";

/// Returns the first reply that arrives at this machine.
fn come_back(Ends { server, client }: Ends) -> std::io::Result<Option<Answer>> {
    let answers = Answers::of(server, client)?;
    let way = Outbound {
        from: Some((client, 0).into()),
        transparent: true,
        resets: true,
        ..Outbound::default()
    };
    let attempt = Attempt::begin(way, server)?;
    let port =
        SockRef::from(&attempt).local_addr()?.as_socket().map_or(0, |address| address.port());
    let end = Instant::now() + PATIENCE;
    let mut attempt = Some(attempt);
    loop {
        while let Some(answer) = answers.next()? {
            if answer.port == port {
                return Ok(Some(answer));
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let mut both = vec![PollFd::new(&answers, PollFlags::IN)];
        both.extend(
            attempt.iter().map(|attempt| PollFd::from_borrowed_fd(attempt.as_fd(), PollFlags::OUT)),
        );
        // If it ends meanwhile, the next check notices.
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let _ = poll(&mut both, Some(&left));
        let has_ended = both.get(1).is_some_and(|one| !one.revents().is_empty());
        // This machine itself has found the server unreachable; replies of the server are handled
        // above.
        if has_ended && let Some(Outcome::Failed(error)) = attempt.take().map(Attempt::outcome) {
            return Err(error);
        }
    }
}
