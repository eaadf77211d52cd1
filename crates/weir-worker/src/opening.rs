//! The listening sockets that workers begin with: bound, or taken over from another process, and
//! distributed among the workers.
//!
//! Called by [`crate::prepare`]; a worker begins to accept when it carries out
//! [`crate::Command::Open`]. A socket that was taken over may have clients in its queue, so at
//! least one worker accepts from each, however many workers run.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_io::{Driver, SocketFile, bind_listener_by, bind_unix};
use weir_proxy::engine::number_listeners;
use weir_proxy::plan::{ListenerPlan, Location};

use crate::listeners::inbound;
use crate::ports::{Port, Sharing};
use crate::start::{Sealing, StartError};
use crate::worker::Worker;

/// Listening sockets of one listener that another process has opened.
#[derive(Debug)]
pub struct Inherited {
    /// The listener as the plan names it.
    pub address: Location,
    /// At least one.
    pub sockets: Vec<OwnedFd>,
    /// They remain open when this process closes them: the service manager keeps them.
    pub stays_open: bool,
    /// Device and inode of the file at the path of a unix socket, if that process is responsible
    /// for it.
    pub file: Option<(u64, u64)>,
}

impl Inherited {
    /// Whether it is the listener of a plan. A listener on another interface is a different one:
    /// its sockets remain on that interface in the process that gave them. Sockets of the service
    /// manager are as it has set them up.
    fn is_of(&self, plan: &ListenerPlan) -> bool {
        let is_by =
            |socket: &OwnedFd| weir_io::device(socket).ok().flatten().as_deref() == plan.device();
        let is_there =
            self.stays_open || plan.address.network().is_none() || self.sockets.iter().all(is_by);
        self.address == plan.address && is_there
    }
}

/// The listening sockets for the workers.
#[derive(Debug, Default)]
pub struct Opening {
    /// By worker, by listener of the plan; each is taken once.
    sockets: Mutex<Vec<Vec<Sockets>>>,
    /// By listener of the plan: how its clients speak TLS.
    seals: Vec<Option<Sealing>>,
    /// Why workers could not accept on them.
    failed: Mutex<Vec<io::Error>>,
}

/// The sockets that one worker has of one listener.
#[derive(Debug, Default)]
struct Sockets {
    sockets: Vec<OwnedFd>,
    stays_open: bool,
}

/// The open listeners of a plan; no worker accepts there yet.
#[derive(Debug)]
pub struct Opened {
    pub(crate) opening: Opening,
    /// Addresses of the listeners, with the real port where 0 was configured.
    pub(crate) addresses: Vec<Location>,
    /// Names of unix sockets, each with the group that its plan gives it.
    pub(crate) files: Vec<(SocketFile, Option<u32>)>,
    /// By listener of the plan: how workers share it.
    pub(crate) sharing: Vec<Sharing>,
}

impl Opening {
    pub(crate) fn set_seals(&mut self, seals: Vec<Option<Sealing>>) {
        self.seals = seals;
    }

    /// Why workers can't accept. Ask when all have carried it out.
    pub(crate) fn take_failed(&self) -> Vec<io::Error> {
        std::mem::take(&mut lock(&self.failed))
    }
}

impl Opened {
    /// Gives the sockets to a user: only the same user may add others on the same port (socket(7),
    /// SO_REUSEPORT).
    ///
    /// # Errors
    /// The operating system's.
    pub fn give_to(&self, uid: u32, gid: u32) -> io::Result<()> {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        for socket in
            lock(&self.opening.sockets).iter().flatten().flat_map(|sockets| &sockets.sockets)
        {
            rustix::fs::fchown(socket, Some(uid), Some(gid))?;
        }
        for (file, group) in &self.files {
            file.give_to(Some(uid.as_raw()), group.is_none().then_some(gid.as_raw()))?;
        }
        Ok(())
    }

    /// Whether some workers accept from the same TCP socket.
    pub(crate) fn is_shared(&self) -> bool {
        let mut all = self.addresses.iter().zip(&self.sharing);
        all.any(|(address, sharing)| address.network().is_some() && *sharing == Sharing::Common)
    }

    /// The sockets, by listener of the plan.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn ports(&self) -> io::Result<Vec<Port>> {
        let of_workers = lock(&self.opening.sockets);
        let mut ports = Vec::new();
        for (at, (address, sharing)) in self.addresses.iter().zip(&self.sharing).enumerate() {
            let mut sockets = Vec::new();
            let mine = of_workers
                .iter()
                .zip(0..)
                .filter_map(|(of_worker, worker)| Some((of_worker.get(at)?, worker)));
            for (of_worker, worker) in mine.filter(|_| *sharing != Sharing::Common) {
                for (nth, socket) in of_worker.sockets.iter().enumerate() {
                    sockets.push((socket.try_clone()?, (nth == 0).then_some(worker)));
                }
            }
            ports.push(Port { address: address.clone(), sharing: *sharing, sockets });
        }
        Ok(ports)
    }

    /// Opens the listeners that are not inherited, and spreads all over the workers: at least 1, as
    /// many as are started later.
    ///
    /// # Errors
    /// The listener that can't be opened, and why.
    pub fn new(
        plans: &[ListenerPlan],
        workers: usize,
        mut inherited: Vec<Inherited>,
    ) -> Result<Opened, StartError> {
        let (mut addresses, mut files, mut sharing) = (Vec::new(), Vec::new(), Vec::new());
        let mut of_workers: Vec<Vec<Sockets>> = (0..workers).map(|_| Vec::new()).collect();
        for plan in plans {
            let at = inherited.iter().position(|inherited| inherited.is_of(plan));
            let (before, stays_open, held) = match at.map(|at| inherited.swap_remove(at)) {
                Some(Inherited { sockets, stays_open, file, .. }) => (sockets, stays_open, file),
                None => (Vec::new(), false, None),
            };
            let is_inherited = !before.is_empty();
            let failed = |error| StartError::Listen { address: plan.address.clone(), error };
            let all = match &plan.address {
                Location::Network(address) => {
                    let all =
                        complete(*address, plan, workers, before, stays_open).map_err(failed)?;
                    addresses.push(all[0].local_addr().map_err(failed)?.into());
                    sharing.push(match is_inherited {
                        _ if all.len() < workers => Sharing::Common,
                        true => Sharing::Inherited,
                        false => Sharing::Own,
                    });
                    all.into_iter().map(OwnedFd::from).collect()
                }
                Location::Destination => return Err(failed(io::ErrorKind::InvalidInput.into())),
                Location::Unix(path) => {
                    addresses.push(plan.address.clone());
                    sharing.push(Sharing::Common);
                    let (all, file) = at_path(path, plan, before, held).map_err(failed)?;
                    files.extend(file.map(|file| (file, plan.group)));
                    all
                }
            };
            for (of_worker, sockets) in
                of_workers.iter_mut().zip(spread(&all, workers).map_err(failed)?)
            {
                of_worker.push(Sockets { sockets, stays_open });
            }
        }
        let opening = Opening { sockets: Mutex::new(of_workers), ..Opening::default() };
        Ok(Opened { opening, addresses, files, sharing })
    }
}

/// The sockets of a listener, with one for each worker if possible; at least one.
fn complete(
    address: SocketAddr,
    plan: &ListenerPlan,
    workers: usize,
    before: Vec<OwnedFd>,
    stays_open: bool,
) -> io::Result<Vec<TcpListener>> {
    let mut all: Vec<TcpListener> = before.into_iter().map(TcpListener::from).collect();
    let mut address = all.first().map_or(Ok(address), TcpListener::local_addr)?;
    // If one of ours joined those that remain open, the clients waiting at it would be lost when
    // weir ends.
    let wanted = if stays_open { 1 } else { workers };
    while all.len() < wanted {
        match bind_listener_by(address, plan.backlog, inbound(plan)) {
            Ok(socket) => {
                address = socket.local_addr()?;
                all.push(socket);
            }
            // The existing sockets suffice when this process is no longer allowed to bind there.
            Err(_) if !all.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The socket at a path, which all workers share. With its name if this process has to remove it: a
/// new one, or one for which it has taken over that duty.
fn at_path(
    path: &Path,
    plan: &ListenerPlan,
    before: Vec<OwnedFd>,
    held: Option<(u64, u64)>,
) -> io::Result<(Vec<OwnedFd>, Option<SocketFile>)> {
    if before.is_empty() {
        let (socket, file) = bind_unix(path, plan.backlog, plan.mode, plan.group)?;
        return Ok((vec![socket], Some(file)));
    }
    // If its name was removed, the file that is there now belongs to another program. Sockets that
    // the service manager keeps are not `held`.
    let file = SocketFile::of(path, false).ok().filter(|file| held.is_some() && file.id() == held);
    Ok((before, file))
}

/// Descriptors of all sockets by worker: each worker has at least one, each socket at least one
/// worker.
fn spread(all: &[OwnedFd], workers: usize) -> io::Result<Vec<Vec<OwnedFd>>> {
    let mut of_workers: Vec<Vec<OwnedFd>> = (0..workers).map(|_| Vec::new()).collect();
    for at in 0..workers.max(all.len()) {
        of_workers[at % workers].push(all[at % all.len()].try_clone()?);
    }
    Ok(of_workers)
}

impl<D: Driver> Worker<D> {
    /// Begins to accept.
    pub(crate) fn open(&mut self, opening: &Opening) {
        let mine =
            lock(&opening.sockets).get_mut(usize::from(self.parts.worker)).map(std::mem::take);
        for (Sockets { sockets, stays_open }, plan) in
            mine.unwrap_or_default().into_iter().zip(&self.parts.plan.listeners)
        {
            if let Err(error) = self.listeners.add(&mut self.driver, sockets, stays_open, plan) {
                lock(&opening.failed).push(error);
            }
        }
        self.listeners.announce(self.driver.inner_mut(), &self.parts.plan);
        number_listeners(&mut self.engine, self.listeners.in_plan(&self.parts.plan));
        self.seal_listeners(&opening.seals);
        if self.draining {
            self.stop_accepting(&[]);
        }
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    //! Proves: whatever the numbers, each worker accepts somewhere and each inherited socket is
    //! accepted from; sockets that the service manager keeps are never joined by others. How: real
    //! sockets, told apart by their inodes.

    use std::collections::BTreeSet;
    use std::os::fd::AsFd;

    use weir_io::bind_listener;

    use super::*;

    fn inodes<'a, F: AsFd + 'a>(sockets: impl IntoIterator<Item = &'a F>) -> BTreeSet<u64> {
        sockets.into_iter().map(|socket| rustix::fs::fstat(socket).expect("open").st_ino).collect()
    }

    fn opened(
        workers: usize,
        count: usize,
        stays_open: bool,
    ) -> (Vec<TcpListener>, Vec<Vec<Sockets>>, bool) {
        let first = bind_listener("127.0.0.1:0".parse().expect("an address"), 8).expect("a port");
        let address = first.local_addr().expect("bound");
        let mut before = vec![first];
        while before.len() < count {
            before.push(bind_listener(address, 8).expect("it shares the port"));
        }
        let sockets =
            before.iter().map(|socket| socket.try_clone().expect("a descriptor").into()).collect();
        let plan = ListenerPlan::new(address);
        let inherited = Inherited { address: address.into(), sockets, stays_open, file: None };
        let opened = Opened::new(&[plan], workers, vec![inherited]).expect("it opens");
        assert_eq!(opened.addresses, [address.into()]);
        let (is_shared, ports) = (opened.is_shared(), opened.ports().expect("descriptors"));
        let of_workers = opened.opening.sockets.into_inner().expect("no panic");
        // Each socket occurs once, and each worker as often as it has a separate socket.
        assert_eq!(ports[0].sharing, if is_shared { Sharing::Common } else { Sharing::Inherited });
        let told: BTreeSet<u32> =
            ports[0].sockets.iter().filter_map(|(_, worker)| *worker).collect();
        assert_eq!(told.len(), if is_shared { 0 } else { workers });
        assert_eq!(
            inodes(ports[0].sockets.iter().map(|(socket, _)| socket)).len(),
            ports[0].sockets.len()
        );
        (before, of_workers, is_shared)
    }

    #[test]
    fn every_socket_has_a_worker_and_every_worker_a_socket() {
        for (workers, count) in [(1, 1), (2, 1), (1, 3), (3, 3), (2, 5), (5, 2)] {
            for stays_open in [false, true] {
                let (before, of_workers, is_shared) = opened(workers, count, stays_open);
                assert!(
                    of_workers
                        .iter()
                        .all(|of_worker| of_worker.len() == 1 && !of_worker[0].sockets.is_empty())
                );
                let all = inodes(of_workers.iter().flatten().flat_map(|sockets| &sockets.sockets));
                assert!(all.is_superset(&inodes(&before)), "{workers} workers, {count} sockets");
                let wanted = if stays_open { count } else { count.max(workers) };
                assert_eq!((all.len(), is_shared), (wanted, wanted < workers));
            }
        }
    }

    #[test]
    fn what_is_not_inherited_is_bound() {
        let address = "127.0.0.1:0".parse().expect("an address");
        let opened = Opened::new(&[ListenerPlan::new(address)], 3, Vec::new()).expect("it opens");
        assert!(
            opened.addresses[0].network().is_some_and(|address| address.port() > 0)
                && !opened.is_shared()
        );
        let ports = opened.ports().expect("descriptors");
        let workers: Vec<_> = ports[0].sockets.iter().map(|(_, worker)| *worker).collect();
        assert_eq!(
            (ports[0].sharing, &workers[..]),
            (Sharing::Own, &[Some(0), Some(1), Some(2)][..])
        );
        let of_workers = opened.opening.sockets.into_inner().expect("no panic");
        assert_eq!(
            inodes(of_workers.iter().flatten().flat_map(|sockets| &sockets.sockets)).len(),
            3
        );
    }
}
