//! The engine in memory, without sockets: every row of the catalogue (docs/hostile.md), every time-out and limit, and
//! random traffic that must come out right. Files are named after what they prove.

// A test binary has no outside that could reach anything.
#![allow(unreachable_pub, missing_docs)]

mod account;
mod again;
mod announcements;
mod balancing;
mod bans;
mod basics;
mod breathing;
mod canaries;
mod circles;
mod compress;
mod compress_away;
mod crowded;
mod cuts;
mod doors;
mod fallbacks;
mod forward;
mod glitches;
mod health;
mod late;
mod limits;
mod losses;
mod misframing;
mod overlooked;
mod own_answers;
mod pipelining;
mod pools;
mod pressure;
mod random;
mod reload;
mod requests;
mod requirements;
mod resting;
mod rules;
mod shield;
mod splits;
mod stalls;
mod stats;
mod stealing;
mod streams;
mod suspects;
mod tarpit;
mod tcp;
mod tcp_names;
mod transparent;
mod truth;
mod tunnels;
mod unheard;
mod upstreams;
mod usage;
mod users;
mod workers;
mod world;
