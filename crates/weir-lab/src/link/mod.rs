//! `weir lab link`: a link between two network namespaces with delay, rate, jitter, loss and
//! reordering, by two TUN devices and one thread.
//!
//! Called by the binary's verb. `terms` are the parameters, `make` makes the two ends, `way`
//! decides about packets in one direction, with `loss`; `carry` moves them. Only `make` and `carry`
//! touch the system. Bounds: those of `way`, once for each direction. docs/link.md.

mod carry;
mod loss;
mod make;
mod terms;
mod way;

use std::fs;
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use weir_io::Namespace;

pub use terms::{
    End, LinkOptions, Place, QUEUE_DEFAULT, Queue, Terms, addresses, bursts, names, place, queues,
    rates, shares, show_rate, time, times,
};
pub use way::Figures;

use crate::random::Random;
use make::Made;
use way::Way;

/// Why there is no link; the text names the cause and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The parameters are incompatible.
    Usage(String),
    /// The operating system forbids it.
    Privilege(String),
    /// The machine can't do it, or not like this.
    Failed(String),
}

/// A link that carries packets until it is dropped.
#[derive(Debug)]
pub struct Link {
    ends: [Made; 2],
    names: [String; 2],
    figures: Arc<Mutex<[Figures; 2]>>,
    /// Closed to stop the thread.
    until: Option<PipeWriter>,
    thread: Option<JoinHandle<Result<(), (usize, io::Error)>>>,
}

impl Link {
    /// Makes a link.
    ///
    /// # Errors
    /// The obstacle; then nothing was changed, or the changes are undone.
    pub fn spawn(options: &LinkOptions) -> Result<Link, Obstacle> {
        let (ends, devices) = make::make(options)?;
        let random = Random::new(options.seed);
        let [there, back] = options.ways;
        let ways = [Way::new(there, &random.fork(1)), Way::new(back, &random.fork(2))];
        let figures = Arc::new(Mutex::new([Figures::default(); 2]));
        let thread = |shared: Arc<Mutex<[Figures; 2]>>| -> io::Result<_> {
            let (reader, writer) = io::pipe()?;
            let run = move || carry::carry(&devices, ways, &shared, &reader);
            Ok((std::thread::Builder::new().name("link".to_owned()).spawn(run)?, writer))
        };
        let (thread, until) = thread(Arc::clone(&figures))
            .map_err(|error| Obstacle::Failed(format!("a thread: {error}")))?;
        let names = options.ends.each_ref().map(|end| end.name.clone());
        Ok(Link { ends, names, figures, until: Some(until), thread: Some(thread) })
    }

    /// Returns the figures of packets so far, from the first end to the second, and back.
    pub fn figures(&mut self) -> [Figures; 2] {
        let mut figures = *self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        for (figures, end) in figures.iter_mut().zip(&mut self.ends) {
            // For an interface that was deleted, the figure is unknown.
            figures.overrun = end.interfaces.dropped(end.index).unwrap_or(0);
        }
        figures
    }

    /// Whether it has ended on its own, because an end is gone.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it; the devices are gone then.
    ///
    /// # Errors
    /// Why it had ended before.
    pub fn stop(mut self) -> Result<(), String> {
        self.until = None;
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err((at, error)))) => Err(format!("{}: {error}", self.names[at])),
            Some(Err(_)) => Err("the thread of the link panicked".to_owned()),
        }
    }

    /// The namespace of an end, 0 or 1.
    pub fn namespace(&self, end: usize) -> &Namespace {
        &self.ends[end].namespace
    }

    /// Returns a path by which others can enter the namespace of an end, 0 or 1, as long as the
    /// link exists: `nsenter --net=PATH`.
    pub fn entrance(&self, end: usize) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.ends[end].namespace.as_fd().as_raw_fd())
    }
}

/// Returns the user namespace of this process, for `nsenter --user=PATH --preserve-credentials`:
/// its rights hold only there, so a process outside has to enter that as well. None: it is that of
/// the machine.
pub fn user_entrance() -> Option<String> {
    let map = fs::read_to_string("/proc/self/uid_map").ok().filter(|map| !is_everybody(map));
    map.map(|_| format!("/proc/{}/ns/user", std::process::id()))
}

/// Whether a map of users (user_namespaces(7)) is that of the machine: every user maps to itself.
fn is_everybody(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

impl Drop for Link {
    fn drop(&mut self) {
        self.until = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Place {
    /// Returns the figures for people, after a name.
    pub fn text(&self) -> String {
        match self {
            Place::Here => "here".to_owned(),
            Place::New => "in a new namespace".to_owned(),
            Place::At(_, said) => format!("in {said}"),
        }
    }
}

impl Figures {
    /// Returns the figures for programs.
    pub fn json(&self) -> Value {
        json!({
            "packets_in": self.packets_in,
            "bytes_in": self.bytes_in,
            "packets_out": self.packets_out,
            "bytes_out": self.bytes_out,
            "lost": self.lost,
            "dropped": self.dropped,
            "refused": self.refused,
            "reordered": self.reordered,
            "held": self.held,
            "overrun": self.overrun,
            "late_mean_us": self.late_mean_ns() as f64 / 1e3,
            "late_max_us": self.late_max_ns as f64 / 1e3,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::is_everybody;

    #[test]
    fn maps_of_users() {
        assert!(is_everybody("         0          0 4294967295\n"));
        for own in ["         0       1000          1\n", "0 0 1\n", "0 0 4294967295\n1 1 1\n", ""]
        {
            assert!(!is_everybody(own), "{own}");
        }
    }
}
