//! One core: the loop that joins a driver with the machines, mail between cores, starting and
//! stopping.
#![forbid(unsafe_code)]

mod bans;
mod control;
mod cores;
mod doing;
mod encoding;
mod enquiry;
mod errands;
mod flows;
mod gate;
mod hand_over;
mod listeners;
mod log_sink;
mod log_writer;
mod looks;
mod mailbox;
mod moves;
mod opening;
mod pinning;
mod ports;
mod prepared;
mod presence;
mod scheduling;
mod seat;
mod shedder;
pub mod shedding;
mod start;
mod starvation;
mod tls;
mod tuning;
mod watchdog;
mod worker;
mod zone;

pub use control::{Adoption, Busy, Command, Control};
pub use cores::Cores;
pub use doing::{Doing, Step};
pub use enquiry::{Enquiry, WorkerReport, enquire};
pub use errands::{ERRANDS_MAX, Errands};
pub use hand_over::{Lending, Lent};
pub use listeners::{ListenerChange, Speech, inbound};
pub use log_sink::{LOG_RING_BYTES, LogSink, Wall};
pub use log_writer::{Complain, LogTrouble, LogWriter, wall_offset_us};
pub use mailbox::{Mailbox, mailboxes, mailboxes_of};
pub use opening::{Inherited, Opened, Opening};
pub use pinning::{Change, Pinning, Place};
pub use ports::{Port, Sharing};
pub use prepared::{Begun, Pair, Prepared};
pub use presence::Times;
pub use scheduling::Scheduling;
pub use shedder::Shedder;
pub use start::{Handle, Running, Sealing, ServerSeals, Setup, StartError, View, prepare, start};
pub use tuning::tuning;
pub use watchdog::{Finding, Watchdog};
pub use worker::Worker;
