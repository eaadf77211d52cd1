//! Socket options of the kernel that an operator may choose, for listeners and for connections to
//! servers: one table says how each is set, read and given back. Used by `way`, which knows the
//! rest of how connections are made and accepted. socket(7), ip(7), ipv6(7), tcp(7).
//!
//! Accepted sockets inherit the options of their listener, so none costs a call for each
//! connection.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::thread;

use libc::c_int;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::Keepalive;

/// An option that is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knob {
    /// The mark of packets, by which rules of routing and of the firewall can select them
    /// (SO_MARK). Needs the capability CAP_NET_RAW, before Linux 5.17 CAP_NET_ADMIN.
    Mark,
    /// The differentiated services code point of packets, 0 to 63 (IP_TOS, IPV6_TCLASS).
    Dscp,
    /// The longest segment, bytes, 88 to 32,767 (TCP_MAXSEG).
    Mss,
    /// Bytes that may be sent and not acknowledged, or wait to be sent; the kernel takes the same
    /// amount again for itself (SO_SNDBUF).
    SendBuffer,
    /// Bytes that may be received and not read, likewise (SO_RCVBUF).
    ReceiveBuffer,
    /// How long sent bytes may remain unacknowledged, milliseconds (TCP_USER_TIMEOUT).
    UserTimeout,
    /// Bytes that may wait to be sent (TCP_NOTSENT_LOWAT).
    NotSentLowWater,
    /// The highest rate of sending, bytes a second (SO_MAX_PACING_RATE).
    MaxRate,
}

const KNOBS: usize = 8;

/// How an option is set. `Knob as usize` is its row.
struct Row {
    knob: Knob,
    /// Its name in the configuration.
    word: &'static str,
    option: (c_int, c_int),
    /// For IPv6 sockets, where that is another one.
    option_v6: Option<(c_int, c_int)>,
    /// The factor by which the kernel's unit is smaller.
    factor: u64,
    /// The value that reads back, in multiples of the one that was set.
    read_factor: u64,
    /// The kernel takes eight bytes, not four.
    is_wide: bool,
    /// The value that gives it back to the system.
    usual: u64,
    /// For the size of a buffer, which the system changes as it needs until one is set: the bit
    /// that keeps it from that (SO_BUF_LOCK).
    lock: Option<u32>,
}

const fn row(knob: Knob, word: &'static str, option: (c_int, c_int)) -> Row {
    Row {
        knob,
        word,
        option,
        option_v6: None,
        factor: 1,
        read_factor: 1,
        is_wide: false,
        usual: 0,
        lock: None,
    }
}

/// `SOCK_SNDBUF_LOCK` and `SOCK_RCVBUF_LOCK` (linux/socket.h).
const SEND_LOCK: u32 = 1;
const RECEIVE_LOCK: u32 = 2;

const ROWS: [Row; KNOBS] = [
    row(Knob::Mark, "mark", (libc::SOL_SOCKET, libc::SO_MARK)),
    Row {
        option_v6: Some((libc::IPPROTO_IPV6, libc::IPV6_TCLASS)),
        // Six bits above two that belong to TCP.
        factor: 4,
        ..row(Knob::Dscp, "dscp", (libc::IPPROTO_IP, libc::IP_TOS))
    },
    row(Knob::Mss, "mss", (libc::IPPROTO_TCP, libc::TCP_MAXSEG)),
    Row {
        read_factor: 2,
        lock: Some(SEND_LOCK),
        ..row(Knob::SendBuffer, "send-buffer", (libc::SOL_SOCKET, libc::SO_SNDBUF))
    },
    Row {
        read_factor: 2,
        lock: Some(RECEIVE_LOCK),
        ..row(Knob::ReceiveBuffer, "receive-buffer", (libc::SOL_SOCKET, libc::SO_RCVBUF))
    },
    row(Knob::UserTimeout, "user-timeout", (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT)),
    row(Knob::NotSentLowWater, "notsent-low-water", (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT)),
    Row {
        is_wide: true,
        usual: u64::MAX,
        ..row(Knob::MaxRate, "max-rate", (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE))
    },
];

const DEVICE: &str = "device";

impl Knob {
    /// All of them.
    pub const ALL: [Knob; KNOBS] = [
        Knob::Mark,
        Knob::Dscp,
        Knob::Mss,
        Knob::SendBuffer,
        Knob::ReceiveBuffer,
        Knob::UserTimeout,
        Knob::NotSentLowWater,
        Knob::MaxRate,
    ];

    /// Its name in the configuration.
    pub fn word(self) -> &'static str {
        ROWS[self as usize].word
    }
}

/// The options chosen for sockets. The default leaves all to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tuning<'a> {
    /// The interface that all packets use (SO_BINDTODEVICE).
    pub device: Option<&'a str>,
    /// When to check whether the other side is still there. None: as is usual for such connections.
    pub keepalive: Option<Keepalive>,
    values: [Option<u64>; KNOBS],
}

/// An option that the kernel has not taken.
#[derive(Debug)]
pub(crate) struct Refused {
    word: &'static str,
    pub(crate) error: io::Error,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refused { word, error } = self;
        match (*word, error.raw_os_error()) {
            (DEVICE, Some(libc::EPERM)) => {
                write!(
                    f,
                    "no permission: `{word}` needs the capability CAP_NET_RAW before Linux 5.7, \
                        and where another process has set it"
                )
            }
            (_, Some(libc::EPERM)) => {
                write!(
                    f,
                    "no permission: `{word}` needs the capability CAP_NET_RAW, before Linux 5.17 \
                        CAP_NET_ADMIN"
                )
            }
            (DEVICE, Some(libc::ENODEV)) => {
                write!(f, "`{word}`: no such interface; {}", known_interfaces())
            }
            _ => write!(f, "`{word}`: {error}"),
        }
    }
}

impl<'a> Tuning<'a> {
    /// With this interface, and the rest as usual.
    pub fn by(device: Option<&'a str>) -> Tuning<'a> {
        Tuning { device, ..Tuning::default() }
    }

    /// With this value for an option, in place of one that it had.
    #[must_use]
    pub fn with(mut self, knob: Knob, value: u64) -> Tuning<'a> {
        self.values[knob as usize] = Some(value);
        self
    }

    fn chosen(&self) -> impl Iterator<Item = (&'static Row, u64)> {
        ROWS.iter().zip(self.values).filter_map(|(row, value)| Some((row, value?)))
    }

    /// Sets the chosen options on a socket that was just made; `way` knows when the other side is
    /// checked.
    pub(crate) fn set(&self, socket: &impl AsFd, is_ipv6: bool) -> Result<(), Refused> {
        if let Some(device) = self.device {
            let bound = SockRef::from(socket).bind_device(Some(device.as_bytes()));
            bound.map_err(|error| Refused { word: DEVICE, error })?;
        }
        self.chosen().try_for_each(|(row, value)| row.set(socket, is_ipv6, value))
    }

    /// Sets the chosen options in the same way, and gives the others back to the system, whatever
    /// was done to the socket before. Skips calls that would change nothing, for which the right
    /// may be missing by now.
    pub(crate) fn apply(&self, socket: &impl AsFd, is_ipv6: bool) -> Result<(), Refused> {
        let of = SockRef::from(socket);
        let failed = |error| Refused { word: DEVICE, error };
        let device = of.device().map_err(failed)?;
        let device = device.as_deref().map(|name| name.strip_suffix(b"\0").unwrap_or(name));
        if device.filter(|name| !name.is_empty()) != self.device.map(str::as_bytes) {
            of.bind_device(self.device.map(str::as_bytes)).map_err(failed)?;
        }
        let mut fresh = None;
        for (row, value) in ROWS.iter().zip(self.values) {
            let now = row.read(socket, is_ipv6);
            match value {
                Some(value)
                    if matches!(
                        now,
                        Ok(now) if now == value * row.factor * row.read_factor
                    ) => {}
                Some(value) => row.set(socket, is_ipv6, value)?,
                None => {
                    let domain = if is_ipv6 { Domain::IPV6 } else { Domain::IPV4 };
                    let make = || Socket::new(domain, Type::STREAM, Some(Protocol::TCP));
                    let failed = |error| Refused { word: row.word, error };
                    let fresh = match &mut fresh {
                        Some(fresh) => fresh,
                        none => none.insert(make().map_err(failed)?),
                    };
                    let usual = row.read(fresh, is_ipv6).map_err(failed)?;
                    // A protocol other than plain TCP may have no such option, and then it was
                    // never set.
                    if now.is_ok_and(|now| now != usual) {
                        row.give_back(socket, is_ipv6, usual).map_err(failed)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a thread that does not administer the network, as no worker does, may have all of
    /// it, and gets it whole.
    ///
    /// # Errors
    /// The impossible option, and why, in words that name the way out.
    pub fn check(&self) -> io::Result<()> {
        if *self == Tuning::default() {
            return Ok(());
        }
        let check = || {
            crate::set_network_aside()?;
            self.try_out(Domain::IPV4)?;
            // Without IPv6 nothing is tried with it.
            match Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)) {
                Ok(_) => self.try_out(Domain::IPV6),
                Err(_) => Ok(()),
            }
        };
        thread::scope(|scope| scope.spawn(check).join())
            .map_err(|_| io::Error::other("a thread panicked"))?
    }

    fn try_out(&self, domain: Domain) -> io::Result<()> {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        let is_ipv6 = domain == Domain::IPV6;
        self.set(&socket, is_ipv6)
            .map_err(|refused| io::Error::new(refused.error.kind(), refused.to_string()))?;
        for (row, value) in self.chosen().filter(|(row, _)| row.lock.is_some()) {
            let given = row.read(&socket, is_ipv6)? / row.read_factor;
            if given < value {
                let limit = if row.knob == Knob::SendBuffer { "wmem_max" } else { "rmem_max" };
                return Err(io::Error::other(format!(
                    "`{}`: {value} bytes requested, but the system gives at most {given}: `sysctl \
                        net.core.{limit}={value}`, or request less",
                    row.word
                )));
            }
        }
        Ok(())
    }
}

impl Row {
    fn place(&self, is_ipv6: bool) -> (c_int, c_int) {
        self.option_v6.filter(|_| is_ipv6).unwrap_or(self.option)
    }

    fn set(&self, socket: &impl AsFd, is_ipv6: bool, value: u64) -> Result<(), Refused> {
        let set = self.write(socket, is_ipv6, value.saturating_mul(self.factor));
        set.map_err(|error| Refused { word: self.word, error })
    }

    /// Lets the kernel decide again; `usual` reads back when it does.
    fn give_back(&self, socket: &impl AsFd, is_ipv6: bool, usual: u64) -> io::Result<()> {
        const LOCKS: (c_int, c_int) = (libc::SOL_SOCKET, libc::SO_BUF_LOCK);
        let Some(bit) = self.lock else { return self.write(socket, is_ipv6, self.usual) };
        self.write(socket, is_ipv6, usual / self.read_factor)?;
        let locks = get(socket, LOCKS, false)? as u32;
        put(socket, LOCKS, &(locks & !bit).to_ne_bytes())
    }

    fn write(&self, socket: &impl AsFd, is_ipv6: bool, value: u64) -> io::Result<()> {
        match self.is_wide {
            true => put(socket, self.place(is_ipv6), &value.to_ne_bytes()),
            false => put(socket, self.place(is_ipv6), &(value as u32).to_ne_bytes()),
        }
    }

    fn read(&self, socket: &impl AsFd, is_ipv6: bool) -> io::Result<u64> {
        get(socket, self.place(is_ipv6), self.is_wide)
    }
}

/// Sets an option of a socket.
pub(crate) fn put(
    socket: &impl AsFd,
    (level, name): (c_int, c_int),
    value: &[u8],
) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: `value` is readable for `len` bytes; the descriptor is open.
    let result = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, value.as_ptr().cast(), len)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option, of eight bytes or of four.
pub(crate) fn get(
    socket: &impl AsFd,
    (level, name): (c_int, c_int),
    is_wide: bool,
) -> io::Result<u64> {
    let mut value = [0u8; 8];
    let mut len = if is_wide { 8 } else { 4 };
    let at = value.as_mut_ptr().cast();
    // SAFETY: `value` is writable for `len` bytes; the descriptor is open.
    let result =
        unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, at, &raw mut len) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let [a, b, c, d, ..] = value;
    Ok(if is_wide {
        u64::from_ne_bytes(value)
    } else {
        u64::from(u32::from_ne_bytes([a, b, c, d]))
    })
}

/// The names of the interfaces where this thread is, in words.
fn known_interfaces() -> String {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names: Vec<&str> =
        text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    format!("this machine has {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    //! Proves: each option reaches accepted and connected sockets, of both families, and is removed
    //! again; impossible options are named. How: real sockets on loopback, with privileged options
    //! where the test may set them.

    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::{Inbound, Outbound};

    /// A value for each that a fresh socket does not have. A mark is left out where this process
    /// may set none.
    fn all() -> Tuning<'static> {
        let values = [7, 18, 1000, 65_536, 50_000, 30_000, 16_384, 2_500_000];
        let all = Knob::ALL.into_iter().zip(values);
        let all = all.fold(Tuning::default(), |tuning, (knob, value)| tuning.with(knob, value));
        match Tuning::default().with(Knob::Mark, 7).check() {
            Ok(()) => all,
            Err(error) => {
                eprintln!("not tested: {error}");
                Tuning {
                    values: {
                        let mut values = all.values;
                        values[0] = None;
                        values
                    },
                    ..all
                }
            }
        }
    }

    fn has(tuning: &Tuning<'_>, socket: &impl AsFd, is_ipv6: bool) {
        for (row, value) in tuning.chosen() {
            let wanted = value * row.factor * row.read_factor;
            let found = row.read(socket, is_ipv6).expect("an option");
            // The value of a connection is less by the room for TCP options.
            let is_less = row.knob == Knob::Mss && (wanted - 40..wanted).contains(&found);
            assert!(found == wanted || is_less, "{}: {found}, not {wanted}", row.word);
        }
        let device = SockRef::from(socket).device().expect("an option");
        let device =
            device.map(|name| String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned());
        assert_eq!(device.as_deref(), tuning.device);
    }

    #[test]
    fn rows_are_in_order() {
        for (at, row) in ROWS.iter().enumerate() {
            assert_eq!((row.knob as usize, Knob::ALL[at]), (at, row.knob));
        }
    }

    #[test]
    fn both_sides_have_what_was_chosen_and_give_it_back() {
        let tuning = Tuning { device: Some("lo"), ..all() };
        tuning.check().expect("everybody may");
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let is_ipv6 = listener.local_addr().expect("bound").is_ipv6();
            let to: SocketAddr = listener.local_addr().expect("bound");
            let listener = OwnedFd::from(listener);
            // Twice, because the second time nothing has to be done.
            for _ in 0..2 {
                Inbound { tuning, ..Inbound::default() }.apply(&listener).expect("everybody may");
            }
            let way = Outbound { tuning, ..Outbound::default() };
            let client = Socket::from(way.socket(to, false).expect("a socket"));
            client.connect(&to.into()).expect("it listens");
            let listener = TcpListener::from(listener);
            let (accepted, _) = listener.accept().expect("one waits");
            has(&tuning, &client, is_ipv6);
            has(&tuning, &accepted, is_ipv6);
            let listener = OwnedFd::from(listener);
            Inbound::default().apply(&listener).expect("everybody may");
            let fresh = Socket::from(Outbound::default().socket(to, false).expect("a socket"));
            for row in &ROWS {
                let [now, usual] = [row.read(&listener, is_ipv6), row.read(&fresh, is_ipv6)]
                    .map(|read| read.expect("an option"));
                assert_eq!(now, usual, "{}", row.word);
            }
            assert_eq!(
                get(&listener, (libc::SOL_SOCKET, libc::SO_BUF_LOCK), false).expect("an option"),
                0
            );
            drop(TcpStream::connect(to).expect("it listens"));
        }
    }

    #[test]
    fn what_can_not_be_had_is_named() {
        let error = Tuning { device: Some("warp0"), ..Tuning::default() }
            .check()
            .expect_err("there is none");
        assert!(
            error.to_string().contains("`device`: no such interface; this machine has "),
            "{error}"
        );
        let error =
            Tuning::default().with(Knob::ReceiveBuffer, 1 << 30).check().expect_err("too much");
        assert!(
            error.to_string().contains("`receive-buffer`: 1073741824 bytes requested"),
            "{error}"
        );
        assert!(error.to_string().contains("net.core.rmem_max"), "{error}");
        let refused = Refused { word: "mark", error: io::Error::from_raw_os_error(libc::EPERM) };
        assert!(
            refused.to_string().contains("`mark` needs the capability CAP_NET_RAW"),
            "{refused}"
        );
    }
}
