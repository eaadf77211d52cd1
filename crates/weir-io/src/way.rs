//! How connections are made and accepted, where that is not left to the kernel: the source address,
//! the destination, and the congestion control.
//!
//! Used by the drivers for each connection to a server, and by the makers of listeners; accepted
//! sockets inherit the options.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::net::{CLIENT_KEEPALIVE, KEEPALIVE, acknowledge_late};
use crate::tuning::{get, put};
use crate::{Keepalive, Tuning};

/// How a connection to a server is made. The default leaves all to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outbound<'a> {
    /// The source address. Port 0: one that the kernel chooses when the connection is made
    /// (IP_BIND_ADDRESS_NO_PORT, ip(7)), so that one port serves connections to different
    /// addresses. None: both are the kernel's choice.
    pub from: Option<SocketAddr>,
    /// `from` need not be an address of this machine (IP_TRANSPARENT, ip(7)), which needs the
    /// capability CAP_NET_RAW or CAP_NET_ADMIN.
    pub transparent: bool,
    /// The name of its congestion control (TCP_CONGESTION, tcp(7)).
    pub congestion: Option<&'a str>,
    /// Other options of its socket.
    pub tuning: Tuning<'a>,
    /// It is reset when it is closed, also by the end of the process (SO_LINGER of zero,
    /// socket(7)), unless a relay has [passed on](crate::Driver::relay) the ends of both sides:
    /// truncated data must not look complete. Unless `tuning` says when, the kernel checks whether
    /// the other side is still there only after it is [asked to](crate::Driver::keep_alive), and
    /// not from the start. The first bytes sent acknowledge that it was connected, or, if it is the
    /// second socket of a relay, the relay does so at once; otherwise that happens after 200 ms.
    pub resets: bool,
}

impl Outbound<'_> {
    /// From an address of this machine, by a port that the kernel chooses.
    pub fn from_address(from: IpAddr) -> Outbound<'static> {
        Outbound { from: Some(SocketAddr::new(from, 0)), ..Outbound::default() }
    }

    /// A socket for it, with TCP_NODELAY, and keepalive unless that comes later.
    pub(crate) fn socket(&self, to: SocketAddr, nonblocking: bool) -> io::Result<OwnedFd> {
        let kind = if nonblocking { Type::STREAM.nonblocking() } else { Type::STREAM };
        let socket = Socket::new(Domain::for_address(to), kind, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        match self.tuning.keepalive {
            Some(chosen) => chosen.set(&socket)?,
            None if self.resets => {}
            None => socket.set_tcp_keepalive(&KEEPALIVE)?,
        }
        if self.transparent {
            set_transparent(&socket, to.is_ipv6(), true)?;
        }
        self.tuning.set(&socket, to.is_ipv6()).map_err(|refused| refused.error)?;
        if let Some(name) = self.congestion {
            socket.set_tcp_congestion(name.as_bytes())?;
        }
        if self.resets {
            socket.set_linger(Some(Duration::ZERO))?;
        }
        if let Some(from) = self.from {
            match from.port() {
                0 => set_option(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, true)?,
                // Connections of one port to different servers.
                _ => socket.set_reuse_address(true)?,
            }
            socket.bind(&from.into())?;
        }
        Ok(socket.into())
    }

    /// A socket for a connect that the driver begins and a relay that it starts as soon as the
    /// connect has succeeded. The relay acknowledges the other side's answer, with the client's
    /// first bytes if they are there.
    pub(crate) fn socket_to_connect(
        &self,
        to: SocketAddr,
        nonblocking: bool,
    ) -> io::Result<OwnedFd> {
        let socket = self.socket(to, nonblocking)?;
        if self.resets {
            acknowledge_late(socket.as_raw_fd());
        }
        Ok(socket)
    }
}

/// The interface that a socket's packets use, if it is bound to one (SO_BINDTODEVICE, socket(7)).
///
/// # Errors
/// It is no socket, or belongs to another network namespace and its interface has gone.
pub fn device(socket: &impl AsFd) -> io::Result<Option<String>> {
    let name = SockRef::from(socket).device()?;
    Ok(name.map(|name| String::from_utf8_lossy(&name_of(&name)).into_owned()))
}

/// How connections of a listener are accepted. The default leaves all to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inbound<'a> {
    /// It takes connections to addresses that are not of this machine, when their packets are led
    /// to it (IP_TRANSPARENT, ip(7)), which needs the capability CAP_NET_RAW or CAP_NET_ADMIN.
    pub transparent: bool,
    /// The name of the congestion control of accepted sockets (TCP_CONGESTION, tcp(7)); None: that
    /// of the system.
    pub congestion: Option<&'a str>,
    /// Other options, of the listener and of accepted sockets.
    pub tuning: Tuning<'a>,
    /// Accepted connections are forwarded as they are: [`Outbound::resets`] applies to them, and
    /// unless `tuning` says when, the kernel checks whether idle clients are still there
    /// (SO_KEEPALIVE, socket(7)).
    pub passed_on: bool,
}

impl<'a> Inbound<'a> {
    /// The same for a listener that was configured like `before`: where clients are not checked any
    /// more, the checks are switched off.
    #[must_use]
    pub fn in_place_of(mut self, before: &Inbound<'_>) -> Inbound<'a> {
        if before.tuning.keepalive.is_some() && !self.passed_on {
            self.tuning.keepalive.get_or_insert(Keepalive::Off);
        }
        self
    }

    /// Makes a listening TCP socket accept connections in this way from now on, whatever it did
    /// before. Skips calls that would change nothing.
    ///
    /// # Errors
    /// The impossible option, and why, in words.
    pub fn apply(&self, listener: &OwnedFd) -> io::Result<()> {
        let socket = SockRef::from(listener);
        let Some(address) = socket.local_addr()?.as_socket() else { return Ok(()) };
        let failed = |kind, why| io::Error::new(kind, format!("cannot listen on {address}: {why}"));
        let tuned = self.tuning.apply(listener, address.is_ipv6());
        tuned.map_err(|refused| failed(refused.error.kind(), refused.to_string()))?;
        self.set(listener, address).map_err(|error| {
            let why = match error.raw_os_error() {
                Some(libc::EPERM) => "no permission: `transparent` needs the capability \
                    CAP_NET_RAW, and a congestion control must be in `sysctl \
                    net.ipv4.tcp_allowed_congestion_control`"
                    .to_owned(),
                Some(libc::ENOENT) => "this kernel has no such congestion control".to_owned(),
                _ => error.to_string(),
            };
            failed(error.kind(), why)
        })
    }

    fn set(&self, listener: &OwnedFd, address: SocketAddr) -> io::Result<()> {
        let socket = SockRef::from(listener);
        // A protocol other than plain TCP may have no such option.
        let is_transparent = match address.is_ipv6() {
            true => get(listener, (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT), false)
                .is_ok_and(|is| is != 0),
            false => socket.ip_transparent_v4().unwrap_or(false),
        };
        if is_transparent != self.transparent {
            set_transparent(listener, address.is_ipv6(), self.transparent)?;
        }
        let was_passed_on = socket.linger()?.is_some();
        if was_passed_on != self.passed_on {
            socket.set_linger(self.passed_on.then_some(Duration::ZERO))?;
        }
        // A protocol other than plain TCP may have no such option: options that were not requested
        // are left out there.
        match self.tuning.keepalive {
            Some(chosen) => chosen.set(listener)?,
            None if self.passed_on => drop(socket.set_tcp_keepalive(&CLIENT_KEEPALIVE)),
            None if was_passed_on => drop(socket.set_keepalive(false)),
            // A keepalive that its maker has set is left alone.
            None => {}
        }
        let of = |socket: &Socket| Ok::<_, io::Error>(name_of(&socket.tcp_congestion()?));
        let wanted = match self.congestion {
            Some(name) => name.as_bytes().to_vec(),
            // A socket that was just made has the system's default.
            None => {
                of(&Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?)?
            }
        };
        if of(&socket)? != wanted {
            socket.set_tcp_congestion(&wanted)?;
        }
        Ok(())
    }
}

/// The name without the bytes behind it.
fn name_of(option: &[u8]) -> Vec<u8> {
    option.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}

/// Whether this thread may make transparent sockets.
///
/// # Errors
/// Why not.
pub fn check_transparent() -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    set_transparent(&socket, false, true)
}

/// Whether a thread that does not administer the network, as no worker does, may use a congestion
/// control.
///
/// # Errors
/// Why not, in words that name the way out.
pub fn check_congestion(name: &str) -> io::Result<()> {
    let check = || {
        crate::set_network_aside()?;
        try_congestion(name)
    };
    thread::scope(|scope| scope.spawn(check).join())
        .map_err(|_| io::Error::other("a thread panicked"))?
}

fn try_congestion(name: &str) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    let Err(error) = socket.set_tcp_congestion(name.as_bytes()) else { return Ok(()) };
    let known = |what: &str| {
        let read = fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{what}_congestion_control"));
        read.map(|text| text.trim().to_owned()).unwrap_or_default()
    };
    let why = match error.raw_os_error() {
        Some(libc::ENOENT) => {
            format!(
                "this kernel has no such congestion control: it has {}; `modprobe tcp_{name}` \
                    may help",
                known("available")
            )
        }
        Some(libc::EPERM) => format!(
            "its name must be in `sysctl net.ipv4.tcp_allowed_congestion_control`, which has {}",
            known("allowed")
        ),
        _ => error.to_string(),
    };
    Err(io::Error::new(error.kind(), format!("congestion control `{name}`: {why}")))
}

fn set_transparent(socket: &impl AsFd, is_ipv6: bool, on: bool) -> io::Result<()> {
    match is_ipv6 {
        true => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, on),
        false => SockRef::from(socket).set_ip_transparent_v4(on),
    }
}

pub(crate) fn set_option(
    socket: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    on: bool,
) -> io::Result<()> {
    put(socket, (level, name), &libc::c_int::from(on).to_ne_bytes())
}

#[cfg(test)]
mod tests {
    //! Proves: outgoing connections are checked for a live peer, and are not given up for a closed
    //! window; they come from the requested address; sockets that listeners accept have their
    //! congestion control; impossible options are named. How: real sockets.

    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A congestion control that every user may use, other than that of the system if possible.
    fn allowed() -> String {
        let read = |what: &str| {
            fs::read_to_string(format!("/proc/sys/net/ipv4/{what}")).expect("every Linux has it")
        };
        let usual = read("tcp_congestion_control");
        let all = read("tcp_allowed_congestion_control");
        let other = all.split_whitespace().find(|name| *name != usual.trim());
        other.unwrap_or(usual.trim()).to_owned()
    }

    fn congestion_of(socket: &impl AsFd) -> String {
        let name = SockRef::from(socket).tcp_congestion().expect("an option");
        String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
    }

    #[test]
    fn outgoing_connections_have_keepalive_and_no_user_timeout() {
        for to in ["127.0.0.1:1", "[::1]:1"] {
            let socket = Outbound::default()
                .socket(to.parse().expect("an address"), true)
                .expect("a socket");
            let options = SockRef::from(&socket);
            assert!(options.keepalive().expect("an option"));
            let (idle, each) = (options.tcp_keepalive_time(), options.tcp_keepalive_interval());
            let count = options.tcp_keepalive_retries().expect("an option");
            assert_eq!(
                idle.expect("an option") + each.expect("an option") * count,
                Duration::from_secs(24)
            );
            assert_eq!(options.tcp_user_timeout().expect("an option"), None);
        }
    }

    #[test]
    fn clients_that_are_passed_on_are_asked_and_not_left_in_order() {
        let listener = OwnedFd::from(TcpListener::bind("127.0.0.1:0").expect("a port"));
        for on in [false, true, false] {
            Inbound { passed_on: on, ..Inbound::default() }
                .apply(&listener)
                .expect("everybody may");
            let listener = TcpListener::from(listener.try_clone().expect("a descriptor"));
            let client =
                TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            let (accepted, _) = listener.accept().expect("one waits");
            let options = SockRef::from(&accepted);
            assert_eq!(options.keepalive().expect("an option"), on);
            assert_eq!(options.linger().expect("an option"), on.then_some(Duration::ZERO));
            if on {
                assert_eq!(
                    options.tcp_keepalive_time().expect("an option"),
                    Duration::from_secs(60)
                );
            }
            drop(client);
        }
        // A socket with a keepalive from its maker keeps it.
        SockRef::from(&listener).set_keepalive(true).expect("an option");
        Inbound::default().apply(&listener).expect("everybody may");
        assert!(SockRef::from(&listener).keepalive().expect("an option"));
    }

    /// Whether the other side is checked, and then after how long, how often, and with how many
    /// unanswered probes.
    fn asks(socket: &impl AsFd) -> Option<[u64; 3]> {
        let options = SockRef::from(socket);
        let seconds = |time: io::Result<Duration>| time.expect("an option").as_secs();
        options.keepalive().expect("an option").then(|| {
            let count = options.tcp_keepalive_retries().expect("an option");
            [
                seconds(options.tcp_keepalive_time()),
                seconds(options.tcp_keepalive_interval()),
                u64::from(count),
            ]
        })
    }

    fn asking(keepalive: Option<Keepalive>) -> Tuning<'static> {
        let mut tuning = Tuning::by(None);
        tuning.keepalive = keepalive;
        tuning
    }

    #[test]
    fn each_side_is_asked_as_was_chosen() {
        let ask = Keepalive::Ask { idle_s: 32_767, interval_s: 7, probes: 127 };
        let usual = Inbound::default();
        let inbound = |passed_on, keepalive| Inbound {
            passed_on,
            tuning: asking(keepalive),
            ..Inbound::default()
        };
        let listener = OwnedFd::from(TcpListener::bind("127.0.0.1:0").expect("a port"));
        let mut before = usual;
        for (passed_on, chosen, wanted) in [
            (false, Some(ask), Some([32_767, 7, 127])),
            (false, None, None),
            (true, None, Some([60, 10, 6])),
            (true, Some(ask), Some([32_767, 7, 127])),
            (true, None, Some([60, 10, 6])),
            (true, Some(Keepalive::Off), None),
            (false, Some(ask), Some([32_767, 7, 127])),
            (true, Some(ask), Some([32_767, 7, 127])),
            (false, None, None),
        ] {
            let next = inbound(passed_on, chosen);
            next.in_place_of(&before).apply(&listener).expect("everybody may");
            before = next;
            let listener = TcpListener::from(listener.try_clone().expect("a descriptor"));
            let client =
                TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            let (accepted, _) = listener.accept().expect("one waits");
            assert_eq!(asks(&accepted), wanted, "{passed_on}, {chosen:?}");
            drop(client);
        }
        for resets in [false, true] {
            for (chosen, wanted) in [(ask, Some([32_767, 7, 127])), (Keepalive::Off, None)] {
                let way = Outbound { tuning: asking(Some(chosen)), resets, ..Outbound::default() };
                let socket =
                    way.socket("127.0.0.1:1".parse().expect("an address"), true).expect("a socket");
                assert_eq!(asks(&socket), wanted);
            }
        }
    }

    #[test]
    fn one_port_serves_connections_to_different_servers() {
        let servers: Vec<SocketAddr> =
            ["127.0.0.1:0", "127.0.0.2:0"].map(|text| text.parse().expect("an address")).into();
        let servers: Vec<TcpListener> =
            servers.iter().map(|at| TcpListener::bind(at).expect("a port")).collect();
        let probe = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
        let way = Outbound { from: Some(probe), ..Outbound::default() };
        let connect = |server: &TcpListener| {
            let to = server.local_addr().expect("bound");
            let socket = Socket::from(way.socket(to, false)?);
            socket.connect(&to.into())?;
            Ok::<_, io::Error>(socket)
        };
        let both: Vec<Socket> =
            servers.iter().map(|server| connect(server).expect("connected")).collect();
        for socket in &both {
            assert_eq!(socket.local_addr().expect("bound").as_socket(), Some(probe));
        }
        // The pair is taken: this error says that another port is needed.
        let error = connect(&servers[0]).expect_err("it is connected already");
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn each_side_has_its_congestion_control() {
        let name = allowed();
        check_congestion(&name).expect("everybody may");
        let listener = OwnedFd::from(TcpListener::bind("127.0.0.1:0").expect("a port"));
        Inbound { congestion: Some(&name), ..Inbound::default() }
            .apply(&listener)
            .expect("everybody may");
        let listener = TcpListener::from(listener);
        let to = listener.local_addr().expect("bound");
        let client = TcpStream::connect(to).expect("it listens");
        let (accepted, _) = listener.accept().expect("one waits");
        assert_eq!(congestion_of(&accepted), name);
        let way = Outbound { congestion: Some(&name), ..Outbound::default() };
        assert_eq!(congestion_of(&way.socket(to, true).expect("a socket")), name);
        drop(client);
        // And back to the usual values.
        let listener = OwnedFd::from(listener);
        Inbound::default().apply(&listener).expect("everybody may");
        let usual = Outbound::default().socket(to, true).expect("a socket");
        assert_eq!(congestion_of(&listener), congestion_of(&usual));
    }

    #[test]
    fn what_is_not_there_is_named() {
        let error = check_congestion("warp").expect_err("there is none").to_string();
        assert!(error.contains("`warp`") && error.contains("it has "), "{error}");
    }
}
