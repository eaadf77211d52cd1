//! `accept-by`: decides which worker gets a new connection where each worker has its own listening
//! socket (docs/workers.md).
//!
//! The best way is an eBPF program ([`weir_bpf::Accept`]), if this process may load one when it
//! starts: that program reads the load board for each connection. The next best way is a classic
//! BPF program. It chooses at random among the workers that have time ([`chosen`]), and is replaced
//! when those change. Otherwise the kernel chooses by the hash, as with `accept-by "hash"`. Called
//! by `run` before rights are dropped and then regularly, by reloads, and to show the present way.
//!
//! Inherited sockets remain under the predecessor's program until the predecessor releases them
//! ([`Spreading::let_go`]), so weir tries again until then. A descriptor kept here keeps a listener
//! open: those of removed listeners are closed as soon as the workers have the new plan.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_bpf::{Accept, Group, Listener};
use weir_config::AcceptBy;
use weir_io::{Board, available_cores, clock_us, give_back_memory, spread_by_hash, spread_over};
use weir_proxy::plan::Location;
use weir_worker::{Handle, Port, Sharing};

use chosen::chosen;

mod chosen;
#[cfg(test)]
mod tests;

/// The state of all listeners.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spreading(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    means: Means,
    /// By listener of the plan in force.
    ports: Vec<Held>,
}

/// The available ways.
#[derive(Debug, Default)]
enum Means {
    /// Only one worker, or `accept-by "hash"`.
    #[default]
    None,
    /// The better way.
    Ebpf(Box<Accept>),
    /// The second way, and why not the better one.
    Classic(String),
}

/// A listener.
#[derive(Debug)]
struct Held {
    address: Location,
    sharing: Sharing,
    way: Way,
    /// Why a better way is unavailable.
    why: Option<String>,
    /// Its sockets, as long as they are needed here.
    sockets: Vec<(OwnedFd, Option<u32>)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Way {
    /// The kernel chooses.
    Hash,
    /// Workers share a socket.
    Common,
    /// weir has one worker.
    Alone,
    /// Not yet known: another process may still have it.
    Awaited,
    Ebpf(Group),
    /// Over these workers.
    Classic(Vec<u32>),
}

/// How one listener spreads connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Its address.
    pub(crate) listener: String,
    /// In words.
    pub(crate) way: &'static str,
    /// Why a better way is unavailable.
    pub(crate) why: Option<String>,
}

impl Way {
    fn words(&self) -> &'static str {
        match self {
            Way::Hash | Way::Awaited => "by hash",
            Way::Common => "one socket for all workers",
            Way::Alone => "one worker",
            Way::Ebpf(_) => "even by eBPF",
            Way::Classic(_) => "even by classic BPF",
        }
    }
}

impl Spreading {
    /// Determines the available ways with the present rights of this process. `pinned`: each worker
    /// will have its own core. Also returns the load board if the kernel will read one.
    pub(crate) fn prepare(
        wish: AcceptBy,
        workers: usize,
        pinned: bool,
    ) -> (Spreading, Option<Arc<Board>>) {
        if wish == AcceptBy::Hash || workers < 2 {
            return (Spreading::default(), None);
        }
        let (means, board) = match ebpf(workers, pinned) {
            Ok((accept, board)) => (Means::Ebpf(Box::new(accept)), Some(Arc::new(board))),
            Err(why) => (Means::Classic(format!("no eBPF: {why}")), None),
        };
        (Spreading(Arc::new(Mutex::new(Inner { means, ports: Vec::new() }))), board)
    }

    /// Takes the listeners of this many workers, in the order of the plan.
    pub(crate) fn take(&self, ports: Vec<Port>, workers: usize) {
        let mut inner = self.lock();
        let held = ports.into_iter().map(|port| inner.means.hold(port, workers)).collect();
        inner.ports = held;
    }

    /// Follows another plan: by its listeners, the previous number of each (None: the next of the
    /// new listeners). Call it when workers know the plan.
    pub(crate) fn follow(&self, before: &[Option<usize>], new: Vec<Port>, workers: usize) {
        let mut inner = self.lock();
        let Inner { means, ports } = &mut *inner;
        let mut old: Vec<Option<Held>> = std::mem::take(ports).into_iter().map(Some).collect();
        let mut new = new.into_iter();
        for before in before {
            let kept = before.and_then(|at| old.get_mut(at)?.take());
            ports.extend(kept.or_else(|| new.next().map(|port| means.hold(port, workers))));
        }
        for held in old.into_iter().flatten() {
            if let (Means::Ebpf(accept), Way::Ebpf(group)) = (&mut *means, held.way) {
                accept.leave(group);
            }
        }
    }

    /// Handles listeners, numbered as for [`Spreading::follow`], that some workers could not take.
    /// Classic BPF chooses by place, and would choose wrong sockets there.
    pub(crate) fn incomplete(&self, before: &[Option<usize>]) {
        for (held, _) in
            self.lock().ports.iter_mut().zip(before).filter(|(_, before)| before.is_none())
        {
            if matches!(held.way, Way::Classic(_)) {
                let why = held.why.take().unwrap_or_default();
                held.leave_to_hash(format!("{why}; no classic BPF: a worker could not take it"));
            }
        }
    }

    /// Does what is due: call it every 50 ms or so, while weir accepts clients.
    pub(crate) fn look(&self, workers: &Handle) {
        let mut inner = self.lock();
        let Inner { means, ports } = &mut *inner;
        if workers.is_ending() {
            ports.iter_mut().for_each(|held| held.sockets.clear());
            return;
        }
        for held in ports {
            match &held.way {
                Way::Awaited => means.choose(held),
                Way::Classic(over) => {
                    let now = chosen(workers.board(), clock_us());
                    if now != *over {
                        held.spread(now);
                    }
                }
                _ => {}
            }
        }
    }

    /// Releases the listeners to another process, which may choose from now on.
    pub(crate) fn let_go(&self) {
        let mut inner = self.lock();
        let Inner { means, ports } = &mut *inner;
        for held in ports {
            if let (Means::Ebpf(accept), Way::Ebpf(group)) = (&mut *means, &held.way) {
                accept.release(*group);
            } else if let (Way::Classic(_), Some((socket, _))) = (&held.way, held.sockets.first()) {
                // A socket without a program needs no replacement.
                let _ = spread_by_hash(socket);
            }
            if matches!(held.way, Way::Ebpf(_) | Way::Classic(_) | Way::Awaited) {
                (held.way, held.why) = (Way::Hash, Some("another weir has taken over".to_owned()));
            }
            held.sockets.clear();
        }
    }

    /// Returns the present ways for people, by listener.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        let inner = self.lock();
        let shown = |held: &Held| Shown {
            listener: held.address.to_string(),
            way: held.way.words(),
            why: held.why.clone(),
        };
        inner.ports.iter().map(shown).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Loads the program, and maps the board that it reads.
fn ebpf(workers: usize, pinned: bool) -> Result<(Accept, Board), String> {
    // If several workers share a core, no worker is nearer than the others.
    let cores = Some(available_cores())
        .filter(|cores| pinned && workers <= cores.len())
        .unwrap_or_default();
    let core_of = |worker: usize| cores.get(worker).and_then(|core| u32::try_from(*core).ok());
    let cores: Vec<Option<u32>> = (0..workers).map(core_of).collect();
    let accept = Accept::load(u32::try_from(workers).unwrap_or(u32::MAX), &cores)
        .map_err(|error| error.to_string());
    // The loader reads all types of the kernel in any case, which takes 20 MB.
    give_back_memory();
    let accept = accept?;
    let board =
        Board::map(accept.board(), workers).map_err(|error| format!("the load board: {error}"))?;
    Ok((accept, board))
}

impl Means {
    /// Has a listener spread connections.
    fn hold(&mut self, port: Port, workers: usize) -> Held {
        let Port { address, sharing, sockets } = port;
        let way = match (sharing, &self) {
            (Sharing::Common, _) => Way::Common,
            _ if workers < 2 => Way::Alone,
            (_, Means::None) => Way::Hash,
            _ => Way::Awaited,
        };
        let mut held = Held { address, sharing, way, why: None, sockets };
        match held.way {
            // It may still have another process's program.
            Way::Awaited if sharing == Sharing::Inherited => {
                held.why = Some("not yet looked at".to_owned())
            }
            Way::Awaited => self.choose(&mut held),
            _ => held.sockets.clear(),
        }
        held
    }

    /// Chooses the best available way.
    fn choose(&mut self, held: &mut Held) {
        let why = match self {
            Means::None => String::new(),
            Means::Classic(why) => why.clone(),
            Means::Ebpf(accept) => match add(accept, held) {
                Ok(group) => {
                    (held.way, held.why) = (Way::Ebpf(group), None);
                    return held.sockets.clear();
                }
                Err(error)
                    if error.kind() == ErrorKind::ResourceBusy
                        && held.sharing == Sharing::Inherited =>
                {
                    held.why = Some("the program of the previous weir is still there".to_owned());
                    return;
                }
                Err(error) if error.kind() == ErrorKind::StorageFull => {
                    format!("no eBPF: it supports {} listeners", weir_bpf::GROUPS_MAX)
                }
                Err(error) => format!("no eBPF: {error}"),
            },
        };
        if held.sharing == Sharing::Inherited {
            let why = format!(
                "{why}; no classic BPF: another process has opened the sockets, so their order is \
                    unknown"
            );
            return held.leave_to_hash(why);
        }
        held.why = Some(why);
        let all = held.sockets.iter().filter_map(|(_, worker)| *worker).collect();
        // One of them is enough to set the program of all.
        held.sockets.truncate(1);
        held.spread(all);
    }
}

fn add(accept: &mut Accept, held: &Held) -> io::Result<Group> {
    let all = held
        .sockets
        .iter()
        .map(|(socket, worker)| Listener { socket: socket.as_fd(), worker: *worker });
    accept.add(&all.collect::<Vec<_>>())
}

impl Held {
    /// Lets the kernel choose by the hash, without a program. A program of a killed weir may still
    /// be there, with a board that is no longer updated.
    fn leave_to_hash(&mut self, why: String) {
        if let Some((socket, _)) = self.sockets.first() {
            // A socket without a program needs no replacement.
            let _ = spread_by_hash(socket);
        }
        (self.way, self.why) = (Way::Hash, Some(why));
        self.sockets.clear();
    }

    /// Spreads over these workers by classic BPF.
    fn spread(&mut self, over: Vec<u32>) {
        let Some((socket, _)) = self.sockets.first() else { return };
        match spread_over(socket, &over) {
            Ok(()) => self.way = Way::Classic(over),
            Err(error) => {
                let why = self.why.take().unwrap_or_default();
                (self.way, self.why) = (Way::Hash, Some(format!("{why}; no classic BPF: {error}")));
                self.sockets.clear();
            }
        }
    }
}
