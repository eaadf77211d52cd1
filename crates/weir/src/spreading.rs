//! Which worker gets a new connection, where each has a listening socket of its own: `accept-by` (docs/semantics.md §25).
//!
//! By a program of eBPF ([`weir_bpf::Accept`]) where this process has the right to it when it starts: that reads the load board for each connection. Else
//! by one of classic BPF, random over those who have time ([`chosen`]), which is made anew when these are others. Else the kernel goes by the hash, as it
//! does with `accept-by "hash"`. Called by `run` before rights are given up and then again and again, by reloads, and by whoever shows it.
//!
//! Sockets of a predecessor are its program's until it has let go of them ([`Spreading::let_go`]). So what can't be had is tried again.
//! A descriptor that is kept here keeps a listener open: those of listeners that go are given up as soon as workers have been told.

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

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spreading(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    means: Means,
    /// By listener of the plan in force.
    ports: Vec<Held>,
}

/// What can be done here.
#[derive(Debug, Default)]
enum Means {
    /// There is nothing to choose from, or nothing is to be done.
    #[default]
    None,
    /// The better one.
    Ebpf(Box<Accept>),
    /// The other one, and why not the better one.
    Classic(String),
}

/// A listener.
#[derive(Debug)]
struct Held {
    address: Location,
    sharing: Sharing,
    way: Way,
    /// Why there is no better way.
    why: Option<String>,
    /// Its sockets, as long as they are needed here.
    sockets: Vec<(OwnedFd, Option<u32>)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Way {
    /// As the kernel does it.
    Hash,
    /// Workers share a socket.
    Common,
    /// There is one worker.
    Alone,
    /// Not yet known: another process may have it still.
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
    /// Why not in a better way.
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
    /// Finds out what can be done, with the rights that this process has now. `pinned`: each worker will have a core of its own. And the load board that the kernel reads, if it is to read one.
    pub(crate) fn prepare(wish: AcceptBy, workers: usize, pinned: bool) -> (Spreading, Option<Arc<Board>>) {
        if wish == AcceptBy::Hash || workers < 2 {
            return (Spreading::default(), None);
        }
        let (means, board) = match ebpf(workers, pinned) {
            Ok((accept, board)) => (Means::Ebpf(Box::new(accept)), Some(Arc::new(board))),
            Err(why) => (Means::Classic(format!("no eBPF: {why}")), None),
        };
        (Spreading(Arc::new(Mutex::new(Inner { means, ports: Vec::new() }))), board)
    }

    /// These are the listeners of so many workers, in the order of the plan.
    pub(crate) fn take(&self, ports: Vec<Port>, workers: usize) {
        let mut inner = self.lock();
        let held = ports.into_iter().map(|port| inner.means.hold(port, workers)).collect();
        inner.ports = held;
    }

    /// Another plan is in force: by its listeners, which one each was before (None: it is the next of the new ones). To be called when workers know.
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

    /// Workers could not take all of these listeners, by the numbers that [`Spreading::follow`] was given. By their places classic BPF would choose others than those that are meant.
    pub(crate) fn incomplete(&self, before: &[Option<usize>]) {
        for (held, _) in self.lock().ports.iter_mut().zip(before).filter(|(_, before)| before.is_none()) {
            if matches!(held.way, Way::Classic(_)) {
                let why = held.why.take().unwrap_or_default();
                held.leave_to_hash(format!("{why}; no classic BPF: a worker could not take it"));
            }
        }
    }

    /// Does what is due: call it every 50 ms or so, when clients are accepted.
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

    /// Another process takes the listeners over: it may choose from them.
    pub(crate) fn let_go(&self) {
        let mut inner = self.lock();
        let Inner { means, ports } = &mut *inner;
        for held in ports {
            if let (Means::Ebpf(accept), Way::Ebpf(group)) = (&mut *means, &held.way) {
                accept.release(*group);
            } else if let (Way::Classic(_), Some((socket, _))) = (&held.way, held.sockets.first()) {
                // What has none needs no other one.
                let _ = spread_by_hash(socket);
            }
            if matches!(held.way, Way::Ebpf(_) | Way::Classic(_) | Way::Awaited) {
                (held.way, held.why) = (Way::Hash, Some("another weir has taken over".to_owned()));
            }
            held.sockets.clear();
        }
    }

    /// For people, by listener.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        let inner = self.lock();
        let shown =
            |held: &Held| Shown { listener: held.address.to_string(), way: held.way.words(), why: held.why.clone() };
        inner.ports.iter().map(shown).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The program, and the board that it reads.
fn ebpf(workers: usize, pinned: bool) -> Result<(Accept, Board), String> {
    // Where several share a core, none of them is nearer than the others.
    let cores = Some(available_cores()).filter(|cores| pinned && workers <= cores.len()).unwrap_or_default();
    let core_of = |worker: usize| cores.get(worker).and_then(|core| u32::try_from(*core).ok());
    let cores: Vec<Option<u32>> = (0..workers).map(core_of).collect();
    let accept = Accept::load(u32::try_from(workers).unwrap_or(u32::MAX), &cores).map_err(|error| error.to_string());
    // The loader reads all types of the kernel at any rate, which takes 20 MB.
    give_back_memory();
    let accept = accept?;
    let board = Board::map(accept.board(), workers).map_err(|error| format!("the load board: {error}"))?;
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
            // It may be another program's still.
            Way::Awaited if sharing == Sharing::Inherited => held.why = Some("not yet looked at".to_owned()),
            Way::Awaited => self.choose(&mut held),
            _ => held.sockets.clear(),
        }
        held
    }

    /// The best way that can be had.
    fn choose(&mut self, held: &mut Held) {
        let why = match self {
            Means::None => String::new(),
            Means::Classic(why) => why.clone(),
            Means::Ebpf(accept) => match add(accept, held) {
                Ok(group) => {
                    (held.way, held.why) = (Way::Ebpf(group), None);
                    return held.sockets.clear();
                }
                Err(error) if error.kind() == ErrorKind::ResourceBusy && held.sharing == Sharing::Inherited => {
                    held.why = Some("the program of the weir before is there still".to_owned());
                    return;
                }
                Err(error) if error.kind() == ErrorKind::StorageFull => {
                    format!("no eBPF: it takes {} listeners", weir_bpf::GROUPS_MAX)
                }
                Err(error) => format!("no eBPF: {error}"),
            },
        };
        if held.sharing == Sharing::Inherited {
            let why =
                format!("{why}; no classic BPF: another process has opened the sockets, so their order is not known");
            return held.leave_to_hash(why);
        }
        held.why = Some(why);
        let all = held.sockets.iter().filter_map(|(_, worker)| *worker).collect();
        // One of them speaks for all.
        held.sockets.truncate(1);
        held.spread(all);
    }
}

fn add(accept: &mut Accept, held: &Held) -> io::Result<Group> {
    let all = held.sockets.iter().map(|(socket, worker)| Listener { socket: socket.as_fd(), worker: *worker });
    accept.add(&all.collect::<Vec<_>>())
}

impl Held {
    /// From now on the kernel goes by the hash, without any program: one may be there still of a weir that was killed, which has a board that nobody writes.
    fn leave_to_hash(&mut self, why: String) {
        if let Some((socket, _)) = self.sockets.first() {
            // What has none needs no other one.
            let _ = spread_by_hash(socket);
        }
        (self.way, self.why) = (Way::Hash, Some(why));
        self.sockets.clear();
    }

    /// By classic BPF over these workers.
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
