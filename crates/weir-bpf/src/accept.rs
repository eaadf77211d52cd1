//! Chooses the worker that gets a new connection to listeners that share a port (SO_REUSEPORT): one
//! that has time for it, according to the load board that the workers write (`bpf/accept.bpf.c`
//! says how). The program reads the board's memory: the owner of the workers maps
//! [`Accept::board`].
//!
//! Needs CAP_BPF and CAP_NET_ADMIN (or CAP_SYS_ADMIN) when it is opened; afterwards nothing. The
//! exception is Linux before 5.19 with `kernel.unprivileged_bpf_disabled` set: there, listeners
//! that come later can't be added. Needs Linux 5.14, the first version that asks the program where
//! clients waiting at a closed listener are moved. Bounds: [`GROUPS_MAX`] addresses, `workers`
//! listeners at each that are chosen from.
//!
//! The program remains attached to the listeners of a port until the last of them is closed or
//! another program replaces it, even when this is dropped. Then it finds no listener of its map,
//! and the kernel chooses by hash as it does without it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{Array, HashMap, Map, MapData, ReusePortSockArray};
use aya::programs::SkReuseport;
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};
use rustix::net::sockopt::socket_cookie;

use crate::error::{BpfError, io_error, kernel, map, of_map, of_object, of_program};

#[cfg(test)]
mod tests;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/accept.bpf.o");
const PROGRAM: &str = "choose";

/// Addresses at which listeners are chosen at a time.
pub const GROUPS_MAX: u32 = 64;
/// Listeners at one address that are known for a place in it, for each worker: some may come from a
/// predecessor.
const KNOWN_EACH: u32 = 4;

/// A listener that shares its port.
#[derive(Debug, Clone, Copy)]
pub struct Listener<'a> {
    /// Its socket.
    pub socket: BorrowedFd<'a>,
    /// The worker that accepts there; None: it is not chosen, because it is a worker's second
    /// listener.
    pub worker: Option<u32>,
}

/// Listeners at one address, by the number of their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group(u32);

/// Listeners that have been at a place. They are remembered as long as no other listeners need it:
/// the program is asked about a closed one once more.
#[derive(Debug, Default)]
struct Place {
    cookies: Vec<u64>,
    is_left: bool,
}

/// See the module.
pub struct Accept {
    object: Ebpf,
    board: MapData,
    sockets: ReusePortSockArray<MapData>,
    groups: HashMap<MapData, u64, u32>,
    places: Vec<Place>,
    workers: u32,
}

impl fmt::Debug for Accept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accept")
            .field("workers", &self.workers)
            .field("places", &self.places)
            .finish_non_exhaustive()
    }
}

impl Accept {
    /// Loads the program into the kernel, for `workers` workers (1 to 256). `cores`: the core on
    /// which each of them runs, by worker; None: on no particular core.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn load(workers: u32, cores: &[Option<u32>]) -> Result<Accept, BpfError> {
        if KernelVersion::current().is_ok_and(|version| version < KernelVersion::new(5, 14, 0)) {
            return Err(kernel("it needs Linux 5.14 or later"));
        }
        let workers = workers.clamp(1, 256);
        let mut loader = EbpfLoader::new();
        // The programs need no kernel type information; the kernel may have none to offer.
        loader.btf(None);
        loader.map_max_entries("board", workers);
        loader.map_max_entries("sockets", workers * GROUPS_MAX);
        // A predecessor may have had more workers, and its sockets are inherited.
        loader.map_max_entries("groups", workers.max(64) * GROUPS_MAX * KNOWN_EACH);
        let mut object = loader.load(OBJECT).map_err(of_object)?;
        // Before any map is dropped: the program refers to maps by their descriptors.
        let program =
            object.program_mut(PROGRAM).ok_or_else(|| kernel("the object has no program"))?;
        <&mut SkReuseport>::try_from(program).map_err(of_program)?.load().map_err(of_program)?;
        map::<Array<_, u32>>(&mut object, "workers")?.set(0, workers, 0).map_err(of_map)?;
        let mut of_cores: Array<_, u32> = map(&mut object, "cores")?;
        let all = of_cores.len();
        for (worker, core) in
            (0..workers).zip(cores).filter_map(|(worker, core)| Some((worker, (*core)?)))
        {
            // The first worker of each core; a core beyond the table has none.
            if core < all && of_cores.get(&core, 0).map_err(of_map)? == 0 {
                of_cores.set(core, worker + 1, 0).map_err(of_map)?;
            }
        }
        let Some(Map::Array(board)) = object.take_map("board") else {
            return Err(kernel("the object has no board"));
        };
        let (sockets, groups) = (map(&mut object, "sockets")?, map(&mut object, "groups")?);
        Ok(Accept { object, board, sockets, groups, places: Vec::new(), workers })
    }

    /// The load board, to be mapped: a line of 64 bytes for each worker.
    pub fn board(&self) -> BorrowedFd<'_> {
        self.board.fd().as_fd()
    }

    /// From now on the program chooses from listeners that share one address, in place of any
    /// program that they have.
    ///
    /// # Errors
    /// The operating system's. `ResourceBusy`: another program chooses from one of them, and
    /// releases it when its process ends, or when it wants to; `StorageFull`: [`GROUPS_MAX`]
    /// addresses are in use. Then the kernel chooses by hash.
    pub fn add(&mut self, listeners: &[Listener<'_>]) -> io::Result<Group> {
        let Some(first) = listeners.first() else { return Err(io::ErrorKind::InvalidInput.into()) };
        let group = self.vacant()?;
        self.program()?.attach(first.socket).map_err(|error| of_attach(&error))?;
        match self.fill(group, listeners) {
            Ok(()) => Ok(group),
            Err(error) => {
                self.release(group);
                Err(error)
            }
        }
    }

    /// Marks these listeners as leaving: others may take their place. Until then, clients that wait
    /// at a closed one are moved to another listener of the group.
    pub fn leave(&mut self, group: Group) {
        if let Some(place) = self.places.get_mut(group.0 as usize) {
            place.is_left = true;
        }
    }

    /// Releases these listeners, so that another program may choose from them. Until then the
    /// kernel chooses by hash.
    pub fn release(&mut self, group: Group) {
        self.leave(group);
        let Some(place) = self.places.get_mut(group.0 as usize) else { return };
        for cookie in place.cookies.drain(..) {
            // A missing entry is fine.
            let _ = self.groups.remove(&cookie);
        }
        for at in 0..self.workers {
            // A closed listener has already left its place.
            let _ = self.sockets.clear_index(&(group.0 * self.workers + at));
        }
    }

    fn program(&self) -> io::Result<&SkReuseport> {
        let program = self.object.program(PROGRAM).ok_or(io::ErrorKind::NotFound)?;
        program.try_into().map_err(io::Error::other)
    }

    /// A place for listeners: one that was never used, otherwise one that its listeners have left.
    fn vacant(&mut self) -> io::Result<Group> {
        if self.places.len() < GROUPS_MAX as usize {
            self.places.push(Place::default());
            return Ok(Group(self.places.len() as u32 - 1));
        }
        let at =
            self.places.iter().position(|place| place.is_left).ok_or(io::ErrorKind::StorageFull)?;
        let group = Group(at as u32);
        self.release(group);
        self.places[at].is_left = false;
        Ok(group)
    }

    fn fill(&mut self, group: Group, listeners: &[Listener<'_>]) -> io::Result<()> {
        let first_place = group.0 * self.workers;
        for Listener { socket, worker } in listeners {
            if let Some(worker) = worker.filter(|worker| *worker < self.workers) {
                self.sockets.set(first_place + worker, socket, 0).map_err(io_error)?;
            }
        }
        // Any of them may be the one for which the program is asked.
        for Listener { socket, .. } in listeners {
            let cookie = socket_cookie(socket)?;
            self.groups.insert(cookie, first_place, 0).map_err(io_error)?;
            self.places[group.0 as usize].cookies.push(cookie);
        }
        Ok(())
    }
}

/// The kernel's error for attaching a program to listeners.
fn of_attach(error: &aya::programs::ProgramError) -> io::Error {
    use aya::programs::{ProgramError, SkReuseportError};
    match error {
        ProgramError::SkReuseportError(SkReuseportError::SetsockoptError { io_error, .. }) => {
            io_error
                .raw_os_error()
                .map_or_else(|| io_error.kind().into(), io::Error::from_raw_os_error)
        }
        error => io::Error::other(error.to_string()),
    }
}
