//! The experiment `block`: who attacks, who asks beside that, and what each contender is told to do about it.
//!
//! Read by `contenders.rs`, `block_cells.rs`, `run/block.rs` and `run/bans.rs`. All contenders have the same limit for a client: [`BURST`] attempts at once and
//! [`RATE`] a second. Attackers come by the clock and far above it, users stay below.

/// Attackers, each with an address of its own.
pub(crate) const ATTACKERS: u32 = 20;
/// How long an attacker waits for a connection that is not answered: less than the second after which the kernel sends its first packet again.
pub(crate) const CONNECT_TIMEOUT_MS: u32 = 500;
/// Users, each with an address and a connection of its own.
pub(crate) const USERS: u32 = 500;
/// Attackers' attempts for each request of users.
pub(crate) const AGAINST_ONE: u32 = 10;
/// Attempts a second that a client may make ...
pub(crate) const RATE: u32 = 2;
/// ... beyond so many at once.
pub(crate) const BURST: u32 = 20;

/// Numbers of bans whose memory is compared: none, some, and as many as there may be (`bans-max`).
pub(crate) const BANS: [u32; 3] = [0, 10_000, 65_536];
/// Length of bans whose end is awaited.
pub(crate) const BAN_SECONDS: u32 = 2;

/// Who is banned connects again so long after a refusal.
pub(crate) const RETRY_MS: u64 = 10;

/// Connections of a client that may be open at a time, where that is limited.
pub(crate) const OPEN: u32 = 10;

/// What an attempt of an attacker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attack {
    /// A request on a connection that is kept, if it is left open.
    Requests,
    /// A connection with one request.
    Connections,
    /// A connection that is closed at once.
    ConnectFlood,
    /// A connection on which nothing comes.
    Hold,
    /// A connection with a head that comes a byte a second.
    SlowHead,
    /// A connection with a request whose content comes a byte a second.
    SlowBody,
    /// A connection with a request for 1 MiB, which is read 4 KiB a second.
    SlowReader,
    /// What is no request.
    Malformed,
    /// A connection with a head of 256 KiB.
    Oversized,
    /// A valid request that hardly anybody sends.
    Fuzz,
    /// A connection with one request, each from another address.
    Many,
}

impl Attack {
    /// Whether attackers come so evenly, and are all served or refused so soon, that what each gets can be compared with his limit.
    pub(crate) const fn is_paced(self) -> bool {
        matches!(self, Attack::Requests | Attack::Connections)
    }

    /// Attackers that are counted by themselves.
    pub(crate) const fn attackers(self) -> u32 {
        if matches!(self, Attack::Many) { 1 } else { ATTACKERS }
    }

    /// Attempts a second of each attacker. All together they have to leave room on the generator's core, also where handing packets from core
    /// to core is expensive: in a virtual machine 11,000 a second filled it.
    pub(crate) const fn rate(self) -> u32 {
        match self {
            Attack::Requests => 200,
            Attack::Connections | Attack::ConnectFlood | Attack::Malformed | Attack::Fuzz => 100,
            Attack::Hold | Attack::SlowHead | Attack::SlowBody | Attack::SlowReader => 30,
            Attack::Oversized => 20,
            Attack::Many => 1000,
        }
    }

    /// Connections that each attacker has at a time, at most. Who is refused pauses for 10 ms before he connects again; who is not answered waits for
    /// [`CONNECT_TIMEOUT_MS`], and makes his next attempts meanwhile. Slow ones have room for some seconds.
    pub(crate) const fn connections(self) -> u32 {
        match self {
            Attack::Requests | Attack::Fuzz => 16,
            Attack::Connections | Attack::ConnectFlood | Attack::Malformed | Attack::Oversized => 64,
            Attack::Hold | Attack::SlowHead | Attack::SlowBody | Attack::SlowReader => 150,
            Attack::Many => 1000,
        }
    }

    /// Requests a second of all users together.
    pub(crate) const fn users_rate(self) -> u32 {
        if self.is_paced() { self.rate() * ATTACKERS / AGAINST_ONE } else { 200 }
    }

    /// The number, from 0, of an attacker's first attempt that is one too many: a bucket of [`BURST`] that [`RATE`] fills is empty then.
    pub(crate) fn first_over(self) -> u32 {
        let filled = f64::from(RATE) / f64::from(self.rate());
        (f64::from(BURST - 1) / (1.0 - filled)).floor() as u32 + 1
    }
}

// Each user asks at most half as often as he may, each attacker forty times.
const _: () = assert!(Attack::Requests.users_rate() * 2 <= USERS * RATE);
const _: () = assert!(Attack::Connections.users_rate() * 2 <= USERS * RATE);
const _: () = assert!(Attack::Requests.rate() < Attack::Requests.connections() * 100);
const _: () = assert!(Attack::Connections.rate() * CONNECT_TIMEOUT_MS / 1000 < Attack::Connections.connections());
const _: () = assert!(Attack::Requests.rate() >= 40 * RATE && Attack::Connections.rate() >= 40 * RATE);

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
    /// The contender that is the same program without a limit: what it serves is what a refusal is compared with.
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
    /// Which.
    pub(crate) program: Program,
    /// What is added to its configuration: the content of weir's `shield`, or lines of nginx's `location` or of HAProxy's `frontend`. `@rate`,
    /// `@burst`, `@more`, `@period` and `@open` stand for [`RATE`], [`BURST`], what may come at once behind the first one, the seconds in which
    /// [`RATE`] makes [`BURST`], and [`OPEN`].
    lines: &'static str,
    /// Somebody is turned away, and not before he goes over the limit.
    pub(crate) refuses: bool,
    /// What nft(8) is told on the proxy's side before it is started; empty: nothing. `@addresses` stands for those of attackers.
    pub(crate) packets: &'static str,
}

impl Limiting {
    /// The added lines with their figures.
    pub(crate) fn lines(self) -> String {
        let figures =
            [("@rate", RATE), ("@burst", BURST), ("@more", BURST - 1), ("@period", BURST / RATE), ("@open", OPEN)];
        figures.iter().fold(self.lines.to_owned(), |text, (word, figure)| text.replace(word, &figure.to_string()))
    }
}

const fn limiting(program: Program, lines: &'static str) -> Limiting {
    Limiting { program, lines, refuses: true, packets: "" }
}

/// Everything is counted, nobody is refused.
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
/// An answer.
pub(crate) const WEIR_429: Limiting =
    limiting(Program::Weir, "    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"429\"\n");
/// No answer: of connections at once, of requests when the head is there.
pub(crate) const WEIR_RESET: Limiting = limiting(
    Program::Weir,
    "    limit \"connections\" count=\"connections\" rate=\"@rate/s\" burst=@burst over=\"reset\"
    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"reset\"
",
);
/// No answer, and from then on no connection; by weir alone.
pub(crate) const WEIR_BAN: Limiting = limiting(
    Program::Weir,
    "    limit \"connections\" count=\"connections\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    ban for=\"1h\" via=\"user\"
",
);
/// The same, and the kernel drops their packets.
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
/// An answer.
pub(crate) const NGINX_429: Limiting = limiting(
    Program::Nginx,
    "            limit_req zone=each burst=@more nodelay;
            limit_req_status 429;
",
);
/// No answer: the connection is closed when the head is there.
pub(crate) const NGINX_444: Limiting = limiting(
    Program::Nginx,
    "            limit_req zone=each burst=@more nodelay;
            limit_req_status 444;
",
);
/// An answer.
pub(crate) const HAPROXY_429: Limiting = limiting(
    Program::Haproxy,
    "    stick-table type ip size 100k expire 30s store http_req_rate(@periods)
    http-request track-sc0 src
    http-request deny deny_status 429 if { sc_http_req_rate(0) gt @burst }
",
);
/// No answer: of connections at once, of requests when the head is there.
pub(crate) const HAPROXY_REJECT: Limiting = limiting(
    Program::Haproxy,
    "    stick-table type ip size 100k expire 30s store conn_rate(@periods),http_req_rate(@periods)
    tcp-request connection track-sc0 src
    tcp-request connection reject if { sc0_conn_rate gt @burst }
    http-request reject if { sc_http_req_rate(0) gt @burst }
",
);

/// No limit: a table of nftables that knows attackers from the beginning drops their packets where weir's does. What dropping costs at least.
pub(crate) const HAPROXY_NFT: Limiting = Limiting {
    refuses: false,
    packets: "table ip known {
    set attackers { type ipv4_addr; elements = { @addresses }; }
    chain in { type filter hook prerouting priority -310; policy accept; ip saddr @attackers drop; }
}
",
    ..limiting(Program::Haproxy, "")
};
/// All that a client can be limited by at a time, each with the mildest refusal.
pub(crate) const WEIR_GUARD: Limiting = limiting(
    Program::Weir,
    "    limit \"connections\" count=\"connections\" rate=\"@rate/s\" burst=@burst over=\"reset\"
    limit \"open\" count=\"open\" max=@open over=\"reset\"
    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"429\"
",
);
/// The same limits; who goes over one is banned, and the kernel drops his packets.
pub(crate) const WEIR_GUARD_BAN: Limiting = limiting(
    Program::Weir,
    "    limit \"connections\" count=\"connections\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    limit \"open\" count=\"open\" max=@open over=\"ban\"
    limit \"requests\" count=\"requests\" rate=\"@rate/s\" burst=@burst over=\"ban\"
    ban for=\"1h\"
",
);
/// What nginx has of that: it counts when it has a head.
pub(crate) const NGINX_GUARD: Limiting = limiting(
    Program::Nginx,
    "            limit_req zone=each burst=@more nodelay;
            limit_req_status 429;
            limit_conn open @open;
            limit_conn_status 429;
",
);
/// What HAProxy has of that.
pub(crate) const HAPROXY_GUARD: Limiting = limiting(
    Program::Haproxy,
    "    stick-table type ip size 100k expire 30s store conn_rate(@periods),conn_cur,http_req_rate(@periods)
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
        let weir = [WEIR_OBSERVE, WEIR_429, WEIR_RESET, WEIR_BAN, WEIR_DROP, WEIR_XDP, WEIR_GUARD, WEIR_GUARD_BAN];
        let others = [NGINX_429, NGINX_444, NGINX_GUARD, HAPROXY_429, HAPROXY_REJECT, HAPROXY_GUARD];
        for limiting in weir.into_iter().chain(others) {
            let text = limiting.lines();
            assert!(!text.contains('@') && text.ends_with('\n'), "{text}");
        }
        assert!(NGINX_429.lines().contains("burst=19 ") && HAPROXY_429.lines().contains("(10s)"));
    }
}
