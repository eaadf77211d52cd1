//! The options of each side of an interception: those of `listen` and `upstream`, and the initial
//! congestion window, which is an attribute of routes. Both sides have the same options.

use clap::Args;

/// Segments that a connection may begin with.
const INITCWND: std::ops::RangeInclusive<i64> = 1..=1000;

/// The flags of a side: names begin with `$side`, and help says `$towards`.
macro_rules! side {
    ($(#[doc = $about:literal])+ $name:ident, $side:literal, $towards:literal) => {
        $(#[doc = $about])+
        #[derive(Args, Debug, Default)]
        pub(super) struct $name {
            #[arg(
                id = concat!($side, "-congestion"),
                long = concat!($side, "-congestion"),
                value_name = "NAME"
            )]
            #[arg(help = concat!("Congestion control towards ", $towards, ", such as bbr; several, \
                such as bbr,cubic, get equal shares [default: the system's]"))]
            pub(super) congestion: Option<String>,
            #[arg(
                id = concat!($side, "-initcwnd"),
                long = concat!($side, "-initcwnd"),
                value_name = "SEGMENTS"
            )]
            #[arg(help = concat!(
                "Initial congestion window towards ",
                $towards,
                ", in segments [default: the system's, 10]"
            ))]
            #[arg(value_parser = clap::value_parser!(u32).range(INITCWND))]
            pub(super) initcwnd: Option<u32>,
            #[arg(
                id = concat!($side, "-max-rate"),
                long = concat!($side, "-max-rate"),
                value_name = "RATE"
            )]
            #[arg(help = concat!(
                "Highest rate of one connection towards ",
                $towards,
                ", such as 20Mbit/s"
            ))]
            max_rate: Option<String>,
            #[arg(
                id = concat!($side, "-dscp"),
                long = concat!($side, "-dscp"),
                value_name = "CODE"
            )]
            #[arg(help = concat!(
                "Class of service of packets towards ",
                $towards,
                ", such as af21"
            ))]
            dscp: Option<String>,
            #[arg(id = concat!($side, "-mss"), long = concat!($side, "-mss"), value_name = "BYTES")]
            #[arg(help = concat!("Longest segment towards ", $towards))]
            mss: Option<String>,
            #[arg(
                id = concat!($side, "-send-buffer"),
                long = concat!($side, "-send-buffer"),
                value_name = "SIZE"
            )]
            #[arg(help = concat!(
                "Kernel buffer for data to ",
                $towards,
                " [default: chosen by the kernel]"
            ))]
            send_buffer: Option<String>,
            #[arg(
                id = concat!($side, "-receive-buffer"),
                long = concat!($side, "-receive-buffer"),
                value_name = "SIZE"
            )]
            #[arg(help = concat!(
                "Kernel buffer for data from ",
                $towards,
                " [default: chosen by the kernel]"
            ))]
            receive_buffer: Option<String>,
            #[arg(
                id = concat!($side, "-user-timeout"),
                long = concat!($side, "-user-timeout"),
                value_name = "TIME"
            )]
            #[arg(help = concat!("How long data sent to ", $towards, " may remain unacknowledged"))]
            user_timeout: Option<String>,
            #[arg(
                id = concat!($side, "-tcp-keepalive"),
                long = concat!($side, "-tcp-keepalive"),
                value_name = "TIMES"
            )]
            #[arg(help = concat!("Idle time, interval and number of keepalive \
                probes to ", $towards, ", such as 60s:10s:6, or off"))]
            tcp_keepalive: Option<String>,
            #[arg(
                id = concat!($side, "-notsent-low-water"),
                long = concat!($side, "-notsent-low-water"),
                value_name = "SIZE"
            )]
            #[arg(help = concat!("Unsent bytes that the kernel accepts towards ", $towards))]
            notsent_low_water: Option<String>,
        }

        impl $name {
            /// Returns the options of the configuration among them: name and value.
            pub(super) fn options(self) -> Vec<(&'static str, String)> {
                let all = [
                    ("congestion", self.congestion),
                    ("max-rate", self.max_rate),
                    ("dscp", self.dscp),
                    ("mss", self.mss),
                    ("send-buffer", self.send_buffer),
                    ("receive-buffer", self.receive_buffer),
                    ("user-timeout", self.user_timeout),
                    ("tcp-keepalive", self.tcp_keepalive),
                    ("notsent-low-water", self.notsent_low_water),
                ];
                all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
            }
        }
    };
}

side!(
    /// Towards clients.
    ClientSide,
    "client",
    "clients"
);
side!(
    /// Towards servers.
    ServerSide,
    "server",
    "servers"
);
