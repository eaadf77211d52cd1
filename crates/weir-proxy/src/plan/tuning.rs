//! Kernel options for the sockets of a listener, or of connections to servers, besides addresses.

/// A socket option that is a number (socket(7), ip(7), tcp(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunable {
    /// The mark of packets, for routing and firewall rules (SO_MARK).
    Mark,
    /// The differentiated services code point of packets, 0 to 63 (IP_TOS, IPV6_TCLASS).
    Dscp,
    /// The longest segment, bytes (TCP_MAXSEG).
    Mss,
    /// Bytes that may be sent and not acknowledged, or wait to be sent (SO_SNDBUF).
    SendBuffer,
    /// Bytes that may be received and not read (SO_RCVBUF).
    ReceiveBuffer,
    /// How long sent bytes may remain unacknowledged, milliseconds (TCP_USER_TIMEOUT).
    UserTimeout,
    /// Bytes that may wait to be sent (TCP_NOTSENT_LOWAT).
    NotSentLowWater,
    /// The highest rate of sending, bytes a second (SO_MAX_PACING_RATE).
    MaxRate,
}

impl Tunable {
    /// All options.
    pub const ALL: [Tunable; 8] = [
        Tunable::Mark,
        Tunable::Dscp,
        Tunable::Mss,
        Tunable::SendBuffer,
        Tunable::ReceiveBuffer,
        Tunable::UserTimeout,
        Tunable::NotSentLowWater,
        Tunable::MaxRate,
    ];

    /// Returns the word of the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Tunable::Mark => "mark",
            Tunable::Dscp => "dscp",
            Tunable::Mss => "mss",
            Tunable::SendBuffer => "send-buffer",
            Tunable::ReceiveBuffer => "receive-buffer",
            Tunable::UserTimeout => "user-timeout",
            Tunable::NotSentLowWater => "notsent-low-water",
            Tunable::MaxRate => "max-rate",
        }
    }
}

/// When the kernel probes whether the other side of an idle connection still responds
/// (SO_KEEPALIVE, socket(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keepalive {
    /// Never.
    Off,
    /// From time to time.
    Ask {
        /// Idle time before the first probe, seconds, 1 to 32,767 (TCP_KEEPIDLE).
        idle_s: u16,
        /// Time until the next probe without a reply, seconds, 1 to 32,767 (TCP_KEEPINTVL).
        interval_s: u16,
        /// Probes without a reply that end the connection, 1 to 127 (TCP_KEEPCNT).
        probes: u8,
    },
}

impl Keepalive {
    /// Most seconds of each time.
    pub const SECONDS_MAX: u16 = 32_767;
    /// Most probes without a reply.
    pub const PROBES_MAX: u8 = 127;
}

/// The chosen options. The default leaves all to the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tuning {
    /// The only interface for its packets (SO_BINDTODEVICE). None: any.
    pub device: Option<Box<str>>,
    /// When the other side is probed. None: the usual for such connections.
    pub keepalive: Option<Keepalive>,
    values: [Option<u64>; Tunable::ALL.len()],
}

impl Tuning {
    /// Returns options for this interface, with default values otherwise.
    pub fn by(device: Option<&str>) -> Tuning {
        Tuning { device: device.map(Into::into), ..Tuning::default() }
    }

    /// Returns the value of an option; None: the kernel decides.
    pub fn get(&self, option: Tunable) -> Option<u64> {
        self.values[option as usize]
    }

    /// Sets an option.
    pub fn set(&mut self, option: Tunable, value: Option<u64>) {
        self.values[option as usize] = value;
    }

    /// Whether setting it may need a capability (CAP_NET_RAW): for a mark; for a device before
    /// Linux 5.7, or where the socket has another one.
    pub fn needs_raw(&self) -> bool {
        self.get(Tunable::Mark).is_some() || self.device.is_some()
    }
}
