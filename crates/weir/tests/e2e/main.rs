//! The end-to-end tests: the real binary with real sockets, on both drivers, one module for each subject; `kit` is what they share.
//!
//! One program and not one for each: forty of them took longer to compile and to link than to run. `cargo test -p weir --test e2e reload::`
//! runs one subject.

mod kit;

mod accept;
mod admin;
mod balancing;
mod bans;
mod bans_kernel;
mod bans_xdp;
mod bomb_http2;
mod cache;
mod cache_hostile;
mod cache_verbs;
mod chaos;
mod clients;
mod compress;
mod discovery;
mod failures;
mod figures;
mod forgotten;
mod forward;
mod fresh;
mod glitches;
mod health;
mod hostile_requests;
mod hostile_upstreams;
mod http2;
mod http2_floods;
mod intercept;
mod intercept_first;
mod lab_link;
mod limits;
mod log;
mod moves;
mod packages;
mod page;
mod passwd;
mod promises;
mod proxy_protocol;
mod proxy_protocol_servers;
mod reload;
mod reload_midway;
mod requests;
mod rules;
mod servers;
mod shield;
mod sockets;
mod stand_ins;
mod strangers;
mod tcp;
mod temporary;
mod tls;
mod tls_servers;
mod tools;
mod transparent;
mod transparent_http;
mod tunnel;
mod unix;
mod unix_listeners;
mod upgrade;
mod user;
mod users;
mod watch;
mod workers;
