//! The experiment `block`: the attackers, the users beside them, and how each contender is set up
//! against attacks.
//!
//! Read by `contenders.rs`, `block_cells.rs`, `run/block.rs` and `run/bans.rs`. All contenders have
//! the same limit for a client: [`BURST`] attempts at once and [`RATE`] a second. Attackers come by
//! the clock and far above it, users stay below.

/// Number of attackers, each with a separate address.
pub(crate) const ATTACKERS: u32 = 20;
/// How long an attacker waits for a connection that is not answered: less than the second after
/// which the kernel sends its first packet again.
pub(crate) const CONNECT_TIMEOUT_MS: u32 = 500;
/// Number of users, each with a separate address and connection.
pub(crate) const USERS: u32 = 500;
/// Attackers' attempts for each request of users.
pub(crate) const AGAINST_ONE: u32 = 10;
/// Attempts a second that a client may make ...
pub(crate) const RATE: u32 = 2;
/// ... beyond this many at once.
pub(crate) const BURST: u32 = 20;

/// Numbers of bans whose memory is compared: none, some, and as many as there may be (`bans-max`).
pub(crate) const BANS: [u32; 3] = [0, 10_000, 65_536];
/// Length of bans whose end is awaited.
pub(crate) const BAN_SECONDS: u32 = 2;

/// How long after a refusal a banned client connects again, milliseconds.
pub(crate) const RETRY_MS: u64 = 10;

/// Connections of a client that may be open at a time, where that is limited.
pub(crate) const OPEN: u32 = 10;

/// What one attempt of an attacker consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attack {
    /// A request on a connection that is kept, if it is left open.
    Requests,
    /// A connection with one request.
    Connections,
    /// A connection that is closed at once.
    ConnectFlood,
    /// A connection on which the client sends nothing.
    Hold,
    /// A connection with a head that comes a byte a second.
    SlowHead,
    /// A connection with a request whose content comes a byte a second.
    SlowBody,
    /// A connection with a request for 1 MiB, which is read 4 KiB a second.
    SlowReader,
    /// Bytes that are not a valid request.
    Malformed,
    /// A connection with a head of 256 KiB.
    Oversized,
    /// A valid but very unusual request.
    Fuzz,
    /// A connection with one request, each from another address.
    Many,
}

impl Attack {
    /// Whether attempts are evenly paced, and all served or refused soon enough, so that what each
    /// attacker gets can be compared with its limit.
    pub(crate) const fn is_paced(self) -> bool {
        matches!(self, Attack::Requests | Attack::Connections)
    }

    /// Number of attackers that are counted individually.
    pub(crate) const fn attackers(self) -> u32 {
        if matches!(self, Attack::Many) { 1 } else { ATTACKERS }
    }

    /// Attempts a second of each attacker. All together they have to leave room on the generator's
    /// core, also where handing packets from core to core is expensive: in a virtual machine 11,000
    /// a second filled it.
    pub(crate) const fn rate(self) -> u32 {
        match self {
            Attack::Requests => 200,
            Attack::Connections | Attack::ConnectFlood | Attack::Malformed | Attack::Fuzz => 100,
            Attack::Hold | Attack::SlowHead | Attack::SlowBody | Attack::SlowReader => 30,
            Attack::Oversized => 20,
            Attack::Many => 1000,
        }
    }

    /// Maximum number of connections that each attacker has at a time. A refused attacker pauses
    /// for 10 ms before it connects again. An unanswered one waits for [`CONNECT_TIMEOUT_MS`], and
    /// makes its next attempts meanwhile. Slow ones have room for some seconds.
    pub(crate) const fn connections(self) -> u32 {
        match self {
            Attack::Requests | Attack::Fuzz => 16,
            Attack::Connections | Attack::ConnectFlood | Attack::Malformed | Attack::Oversized => {
                64
            }
            Attack::Hold | Attack::SlowHead | Attack::SlowBody | Attack::SlowReader => 150,
            Attack::Many => 1000,
        }
    }

    /// Requests a second of all users together.
    pub(crate) const fn users_rate(self) -> u32 {
        if self.is_paced() { self.rate() * ATTACKERS / AGAINST_ONE } else { 200 }
    }

    /// The number, from 0, of the first attempt of an attacker that exceeds the limit: a bucket of
    /// [`BURST`] that [`RATE`] fills is empty then.
    pub(crate) fn first_over(self) -> u32 {
        let filled = f64::from(RATE) / f64::from(self.rate());
        (f64::from(BURST - 1) / (1.0 - filled)).floor() as u32 + 1
    }
}

// Each user sends at most half as many requests as allowed, each attacker forty times as many.
const _: () = assert!(Attack::Requests.users_rate() * 2 <= USERS * RATE);
const _: () = assert!(Attack::Connections.users_rate() * 2 <= USERS * RATE);
const _: () = assert!(Attack::Requests.rate() < Attack::Requests.connections() * 100);
const _: () = assert!(
    Attack::Connections.rate() * CONNECT_TIMEOUT_MS / 1000 < Attack::Connections.connections()
);
const _: () =
    assert!(Attack::Requests.rate() >= 40 * RATE && Attack::Connections.rate() >= 40 * RATE);

/// A program that can limit its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// weir.
    Weir,
    /// nginx.
    Nginx,
    /// HAProxy.
    Haproxy,
}

impl Program {
    /// Returns the contender that is the same program without a limit. A refusal is compared with
    /// what that contender serves.
    pub(crate) fn without_limit(self) -> &'static str {
        match self {
            Program::Weir => "weir",
            Program::Nginx => "nginx",
            Program::Haproxy => "haproxy",
        }
    }
}

/// A program with its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limiting {
    /// The program.
    pub(crate) program: Program,
    /// What is added to its configuration: the content of weir's `shield`, or lines of nginx's
    /// `location` or of HAProxy's `frontend`. `@rate`, `@burst` and `@open` stand for [`RATE`],
    /// [`BURST`] and [`OPEN`]. `@more` stands for what may come at once after the first attempt,
    /// `@period` for the seconds in which [`RATE`] makes [`BURST`].
    lines: &'static str,
    /// Some clients are refused, and none before it exceeds the limit.
    pub(crate) refuses: bool,
    /// Rules for nft(8) on the proxy's side, loaded before the proxy starts; empty: none.
    /// `@addresses` stands for the addresses of attackers.
    pub(crate) packets: &'static str,
}

impl Limiting {
    /// The added lines with their figures.
    pub(crate) fn lines(self) -> String {
        let figures = [
            ("@rate", RATE),
            ("@burst", BURST),
            ("@more", BURST - 1),
            ("@period", BURST / RATE),
            ("@open", OPEN),
        ];
        figures.iter().fold(self.lines.to_owned(), |text, (word, figure)| {
            text.replace(word, &figure.to_string())
        })
    }
}

const fn limiting(program: Program, lines: &'static str) -> Limiting {
    Limiting { program, lines, refuses: true, packets: "" }
}

/// Counts everything and refuses no client.
pub(crate) const WEIR_OBSERVE: Limiting = Limiting {
    refuses: false,
    ..limiting(
        Program::Weir,
        "    mode \"observe\"
    limit \"connections\" count=\"connections\" rate=\"@rate/s\" burst=@burst
    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst
",
    )
};
/// Refuses with a response.
pub(crate) const WEIR_429: Limiting = limiting(
    Program::Weir,
    "    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"429\"\n",
);
/// Refuses with a reset: connections at once, requests when the head is complete.
pub(crate) const WEIR_RESET: Limiting = limiting(
    Program::Weir,
    "    limit \"connections\" count=\"connections\" rate=\"@rate/s\" burst=@burst over=\"reset\"
    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"reset\"
",
);
/// Refuses with a reset, and from then on refuses all connections of the client; done by weir
/// alone.
pub(crate) const WEIR_BAN: Limiting = limiting(
    Program::Weir,
    "    limit \"connections\" count=\"connections\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    ban for=\"1h\" via=\"user\"
",
);
/// The same, and the kernel drops the client's packets.
pub(crate) const WEIR_DROP: Limiting = limiting(
    Program::Weir,
    "    limit \"connections\" count=\"connections\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    ban for=\"1h\"
",
);
/// The same in the driver of the network card.
pub(crate) const WEIR_XDP: Limiting = limiting(
    Program::Weir,
    "    limit \"connections\" count=\"connections\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    ban for=\"1h\" via=\"xdp\" interface=\"proxy\"
",
);
/// Refuses with a response.
pub(crate) const NGINX_429: Limiting = limiting(
    Program::Nginx,
    "            limit_req zone=each burst=@more nodelay;
            limit_req_status 429;
",
);
/// Refuses without a response: closes the connection when the head is complete.
pub(crate) const NGINX_444: Limiting = limiting(
    Program::Nginx,
    "            limit_req zone=each burst=@more nodelay;
            limit_req_status 444;
",
);
/// Refuses with a response.
pub(crate) const HAPROXY_429: Limiting = limiting(
    Program::Haproxy,
    "    stick-table type ip size 100k expire 30s store http_req_rate(@periods)
    http-request track-sc0 src
    http-request deny deny_status 429 if { sc_http_req_rate(0) gt @burst }
",
);
/// Refuses without a response: connections at once, requests when the head is complete.
pub(crate) const HAPROXY_REJECT: Limiting = limiting(
    Program::Haproxy,
    "    stick-table type ip size 100k expire 30s store conn_rate(@periods),http_req_rate(@periods)
    tcp-request connection track-sc0 src
    tcp-request connection reject if { sc0_conn_rate gt @burst }
    http-request reject if { sc_http_req_rate(0) gt @burst }
",
);

/// No limit: a table of nftables that knows the attackers from the start drops their packets where
/// weir's table does. Shows the minimum cost of dropping.
pub(crate) const HAPROXY_NFT: Limiting = Limiting {
    refuses: false,
    packets: "table ip known {
    set attackers { type ipv4_addr; elements = { @addresses }; }
    chain in { type filter hook prerouting priority -310; policy accept; ip saddr @attackers drop; }
}
",
    ..limiting(Program::Haproxy, "")
};
/// All limits on what a client holds at a time, each with the mildest refusal.
pub(crate) const WEIR_GUARD: Limiting = limiting(
    Program::Weir,
    "    limit \"connections\" count=\"connections\" rate=\"@rate/s\" burst=@burst over=\"reset\"
    limit \"open\" count=\"open\" max=@open over=\"reset\"
    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"429\"
",
);
/// The same limits; a client that exceeds one is banned, and the kernel drops its packets.
pub(crate) const WEIR_GUARD_BAN: Limiting = limiting(
    Program::Weir,
    "    limit \"connections\" count=\"connections\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    limit \"open\" count=\"open\" max=@open over=\"ban\"
    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    ban for=\"1h\"
",
);
/// The nearest that nginx offers: it counts once it has a head.
pub(crate) const NGINX_GUARD: Limiting = limiting(
    Program::Nginx,
    "            limit_req zone=each burst=@more nodelay;
            limit_req_status 429;
            limit_conn open @open;
            limit_conn_status 429;
",
);
/// The nearest that HAProxy offers.
pub(crate) const HAPROXY_GUARD: Limiting = limiting(
    Program::Haproxy,
    "    stick-table type ip size 100k expire 30s \
    store conn_rate(@periods),conn_cur,http_req_rate(@periods)
    tcp-request connection track-sc0 src
    tcp-request connection reject if { sc0_conn_rate gt @burst } || { sc0_conn_cur gt @open }
    http-request deny deny_status 429 if { sc_http_req_rate(0) gt @burst }
",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_one_too_many_when_the_bucket_is_empty() {
        for attack in [Attack::Requests, Attack::Connections] {
            let (mut left, mut nth) = (f64::from(BURST), 0);
            while left >= 1.0 {
                left += f64::from(RATE) / f64::from(attack.rate()) - 1.0;
                nth += 1;
            }
            assert_eq!(attack.first_over(), nth, "{attack:?}");
        }
    }

    #[test]
    fn figures_stand_in_all_lines() {
        let weir = [
            WEIR_OBSERVE,
            WEIR_429,
            WEIR_RESET,
            WEIR_BAN,
            WEIR_DROP,
            WEIR_XDP,
            WEIR_GUARD,
            WEIR_GUARD_BAN,
        ];
        let others =
            [NGINX_429, NGINX_444, NGINX_GUARD, HAPROXY_429, HAPROXY_REJECT, HAPROXY_GUARD];
        for limiting in weir.into_iter().chain(others) {
            let text = limiting.lines();
            assert!(!text.contains('@') && text.ends_with('\n'), "{text}");
        }
        assert!(NGINX_429.lines().contains("burst=19 ") && HAPROXY_429.lines().contains("(10s)"));
    }
}
