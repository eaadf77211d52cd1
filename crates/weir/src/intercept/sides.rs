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
            #[arg(id = concat!($side, "-congestion"), long = concat!($side, "-congestion"), value_name = "NAME")]
            #[arg(help = concat!("Congestion control towards ", $towards, ", such as bbr; several, as bbr,cubic, have equal parts [default: the system's]"))]
            pub(super) congestion: Option<String>,
            #[arg(id = concat!($side, "-initcwnd"), long = concat!($side, "-initcwnd"), value_name = "SEGMENTS")]
            #[arg(help = concat!("Segments that a connection towards ", $towards, " begins with [default: the system's, 10]"))]
            #[arg(value_parser = clap::value_parser!(u32).range(INITCWND))]
            pub(super) initcwnd: Option<u32>,
            #[arg(id = concat!($side, "-max-rate"), long = concat!($side, "-max-rate"), value_name = "RATE")]
            #[arg(help = concat!("The most that is sent on one connection towards ", $towards, ", such as 20Mbit/s"))]
            max_rate: Option<String>,
            #[arg(id = concat!($side, "-dscp"), long = concat!($side, "-dscp"), value_name = "CODE")]
            #[arg(help = concat!("The class of service of packets towards ", $towards, ", such as af21"))]
            dscp: Option<String>,
            #[arg(id = concat!($side, "-mss"), long = concat!($side, "-mss"), value_name = "BYTES")]
            #[arg(help = concat!("The longest segment towards ", $towards))]
            mss: Option<String>,
            #[arg(id = concat!($side, "-send-buffer"), long = concat!($side, "-send-buffer"), value_name = "SIZE")]
            #[arg(help = concat!("Bytes that the kernel keeps to send towards ", $towards, " [default: as many as it finds useful]"))]
            send_buffer: Option<String>,
            #[arg(id = concat!($side, "-receive-buffer"), long = concat!($side, "-receive-buffer"), value_name = "SIZE")]
            #[arg(help = concat!("Bytes that the kernel keeps of what ", $towards, " sent [default: as many as it finds useful]"))]
            receive_buffer: Option<String>,
            #[arg(id = concat!($side, "-user-timeout"), long = concat!($side, "-user-timeout"), value_name = "TIME")]
            #[arg(help = concat!("How long what was sent to ", $towards, " may stay unacknowledged"))]
            user_timeout: Option<String>,
            #[arg(id = concat!($side, "-tcp-keepalive"), long = concat!($side, "-tcp-keepalive"), value_name = "TIMES")]
            #[arg(help = concat!("After how long, how often and how many times in vain ", $towards, " that rest are asked whether they are still there, such as 60s:10s:6, or off"))]
            tcp_keepalive: Option<String>,
            #[arg(id = concat!($side, "-notsent-low-water"), long = concat!($side, "-notsent-low-water"), value_name = "SIZE")]
            #[arg(help = concat!("Bytes that the kernel takes before their time to be sent to ", $towards, " has come"))]
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
