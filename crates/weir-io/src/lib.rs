//! The operating system as weir sees it: sockets, completions, time.
//!
//! [`Driver`] is the one interface; `uring`, `epoll` and `sim` implement it. All speak completions
//! with owned buffers, so the code above sees one world. This crate is the only one with unsafe
//! code.

mod announced;
mod answers;
mod attempt;
pub mod board;
mod buffer;
#[cfg(any(test, feature = "conformance"))]
#[allow(missing_docs, reason = "only tests of drivers use it, and its names say what is meant")]
pub mod conformance;
mod courtesy;
mod descriptors;
mod driver;
mod epoll;
mod ethtool;
mod file;
mod inherited;
mod keepalive;
mod later;
mod local;
mod memory;
mod namespace;
mod net;
mod netlink;
pub mod nft;
mod options;
mod outgoing;
mod path;
mod pool;
mod privileges;
mod probe;
mod proxy_header;
mod refused;
mod relay;
mod released;
mod rtnetlink;
mod rules;
mod scarce;
mod shared_board;
pub mod sim;
mod spread;
mod table;
mod thread;
mod tun;
mod tuning;
mod unix_listener;
mod uring;
mod wake;
mod way;

pub use announced::{Announced, Balancers, HEADER_US};
pub use answers::{Answer, Answers};
pub use attempt::{Attempt, Outcome, Report, begin_connect, is_over, unconnected};
pub use board::Board;
pub use buffer::RecvBuf;
pub use courtesy::Courtesy;
pub use descriptors::Descriptors;
pub use driver::{
    AcceptQueue, Class, Completion, Delivery, Departure, Driver, DriverStats, Event, Payload,
    Receive, RelayEnd, Relayed, Socket, Token, Waker,
};
pub use epoll::Epoll;
pub use ethtool::{Rss, rss};
pub use file::{check_regular, open_regular};
pub use inherited::take_inherited;
pub use keepalive::Keepalive;
pub use local::{LocalRoutes, OwnAddresses, host_name, local_addresses};
pub use memory::give_back_memory;
pub use namespace::Namespace;
pub use net::{
    UNIX_PEER, adopt_listener, bind_listener, bind_listener_by, bind_listeners, clock_us,
};
pub use options::{IoChoice, Options};
pub use path::Path;
pub use privileges::{
    Identity, NotDropped, forgo_network, give_up, hide_memory, set_network_aside, take_up_network,
};
pub use probe::{DriverKind, Probe, choose, probe};
#[cfg(any(test, feature = "fuzzing"))]
pub use proxy_header::fuzzing as proxy_header_fuzzing;
pub use proxy_header::{NoProxyHeader, PROXY_HEADER_BYTES_MAX, ProxyHeader, ProxyVersion, Whose};
pub use released::{Loose, Released};
pub use rtnetlink::{Interfaces, Layer, Link};
pub use rules::Led;
pub use spread::{PLACES_MAX, spread_by_hash, spread_over};
pub use thread::{Policy, available_cores, cpu_time_of, pin_to, policy_of, set_cores, set_policy};
pub use tun::{INTERFACE_NAME_BYTES_MAX, TUN_DEVICE, Tun};
pub use tuning::{Knob, Tuning};
pub use unix_listener::{SocketFile, bind_unix, check_unix_free};
pub use uring::Uring;
pub use way::{Inbound, Outbound, check_congestion, check_transparent, device};
