//! One core: the loop that joins a driver with the machines, mail between cores, starting and stopping.
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
mod mailbox;
mod opening;
mod prepared;
mod presence;
mod scheduling;
mod seat;
pub mod shedding;
mod start;
mod starvation;
mod tls;
mod tuning;
mod watchdog;
mod worker;

pub use control::{Adoption, Busy, Command, Control};
pub use cores::Cores;
pub use doing::{Doing, Step};
pub use enquiry::{Enquiry, WorkerReport, enquire};
pub use errands::{ERRANDS_MAX, Errands};
pub use hand_over::{Lending, Lent};
pub use listeners::{ListenerChange, Speech, inbound};
pub use log_sink::{LOG_RING_BYTES, LogSink, Wall};
pub use log_writer::{LogWriter, wall_offset_us};
pub use mailbox::{Mailbox, mailboxes, mailboxes_of};
pub use opening::{Inherited, Opened, Opening};
pub use prepared::{Pair, Prepared};
pub use scheduling::Scheduling;
pub use start::{Handle, Running, Sealing, ServerSeals, Setup, StartError, View, prepare, start};
pub use tuning::tuning;
pub use watchdog::Watchdog;
pub use worker::Worker;
