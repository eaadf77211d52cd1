//! What the kernel is asked of the sockets of a listener, or of connections to servers, besides addresses.

/// An option of sockets that is a number (socket(7), ip(7), tcp(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunable {
    /// The mark of packets, for rules of routing and of the firewall (SO_MARK).
    Mark,
    /// The differentiated services code point of packets, 0 to 63 (IP_TOS, IPV6_TCLASS).
    Dscp,
    /// The longest segment, bytes (TCP_MAXSEG).
    Mss,
    /// Bytes that may be sent and not acknowledged, or wait to be sent (SO_SNDBUF).
    SendBuffer,
    /// Bytes that may be received and not read (SO_RCVBUF).
    ReceiveBuffer,
    /// How long what was sent may stay unacknowledged, milliseconds (TCP_USER_TIMEOUT).
    UserTimeout,
    /// Bytes that may wait to be sent (TCP_NOTSENT_LOWAT).
    NotSentLowWater,
    /// The highest rate of sending, bytes a second (SO_MAX_PACING_RATE).
    MaxRate,
}

impl Tunable {
    /// All of them.
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

    /// What the configuration calls it.
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

/// When the kernel asks whether the other side of a connection that rests is still there (SO_KEEPALIVE, socket(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keepalive {
    /// Never.
    Off,
    /// From time to time.
    Ask {
        /// How long it has rested before the first time, seconds, 1 to 32,767 (TCP_KEEPIDLE).
        idle_s: u16,
        /// How long until the next time where nothing comes back, seconds, 1 to 32,767 (TCP_KEEPINTVL).
        interval_s: u16,
        /// So many in vain end the connection, 1 to 127 (TCP_KEEPCNT).
        probes: u8,
    },
}

impl Keepalive {
    /// Most seconds, each.
    pub const SECONDS_MAX: u16 = 32_767;
    /// Most times in vain.
    pub const PROBES_MAX: u8 = 127;
}

/// What was chosen. The default leaves all to the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tuning {
    /// The interface by which packets come and go (SO_BINDTODEVICE). None: any.
    pub device: Option<Box<str>>,
    /// When the other side is asked whether it is still there. None: as is usual for such connections.
    pub keepalive: Option<Keepalive>,
    values: [Option<u64>; Tunable::ALL.len()],
}

impl Tuning {
    /// By this interface, and the rest as usual.
    pub fn by(device: Option<&str>) -> Tuning {
        Tuning { device: device.map(Into::into), ..Tuning::default() }
    }

    /// What was chosen for an option; None: it is left to the kernel.
    pub fn get(&self, option: Tunable) -> Option<u64> {
        self.values[option as usize]
    }

    /// Chooses it.
    pub fn set(&mut self, option: Tunable, value: Option<u64>) {
        self.values[option as usize] = value;
    }

    /// Whether only some may set it, for lack of a capability (CAP_NET_RAW): for a device before Linux 5.7, and where the socket has another one.
    pub fn needs_raw(&self) -> bool {
        self.get(Tunable::Mark).is_some() || self.device.is_some()
    }
}
