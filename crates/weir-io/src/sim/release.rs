//! Connections that move from one driver of the world to another. Called by [`super::SimDriver`]
//! and by a turn.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::end::{EndId, Owner};
use super::kernel::{Kind, SocketState, Staged};
use super::world::World;
use crate::released::{Rest, Which};
use crate::{Completion, Event, Loose, Receive, Socket, Token};

/// Ends that were closed by their holders.
pub(super) type Dropped = Arc<Mutex<Vec<EndId>>>;

/// An end that no driver has. Dropping it closes it, with the next step of its world.
#[derive(Debug)]
pub(crate) struct LooseEnd {
    /// None: a driver has taken it.
    end: Option<EndId>,
    dropped: Dropped,
}

impl Drop for LooseEnd {
    fn drop(&mut self) {
        if let Some(end) = self.end {
            self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(end);
        }
    }
}

pub(super) fn release(world: &mut World, driver: usize, socket: Socket) -> bool {
    let state = world.drivers[driver].get(socket);
    let is_free = |state: &SocketState| {
        matches!(state.kind, Kind::Stream { connected: true, .. })
            && state.sending.is_none()
            && !state.relaying
            && !state.releasing
    };
    let is_told_first = |staged: &Staged| {
        staged.socket == socket && matches!(staged.event, Event::Connected(_) | Event::Sent { .. })
    };
    if !state.is_some_and(is_free) || world.drivers[driver].ready.iter().any(is_told_first) {
        return false;
    }
    // A receive that is with the kernel may take more before it is cancelled.
    let goes_on = world.rng.chance(world.settings.faults.late_off);
    let driver = &mut world.drivers[driver];
    if let Some(state) = driver.get_mut(socket) {
        state.releasing = true;
        state.wanted = None;
        if !goes_on {
            state.receive = Receive::Off;
        }
    }
    driver.releasing.push(socket);
    true
}

/// Hands out released connections without anything in flight, at the end of a turn.
pub(super) fn let_go(world: &mut World, driver: usize, into: &mut Vec<Completion>) {
    for socket in std::mem::take(&mut world.drivers[driver].releasing) {
        if world.rng.chance(world.settings.faults.late_completion) {
            world.drivers[driver].releasing.push(socket);
            continue;
        }
        // It may have been closed.
        let Some((state, staged)) = world.drivers[driver].remove(socket) else { continue };
        let Kind::Stream { end: id, .. } = state.kind else { continue };
        let mut rest = Rest { ended: state.ended, ..Rest::default() };
        for Staged { event, .. } in staged {
            match event {
                Event::Received(bytes) => rest.bytes.extend_from_slice(&bytes),
                Event::Ended => rest.ended = true,
                Event::ReceiveFailed(error) => (rest.error, rest.ended) = (Some(error), false),
                _ => {}
            }
        }
        if let Some(end) = world.ends.get_mut(id) {
            end.owner = Owner::Nobody;
        }
        let loose = LooseEnd { end: Some(id), dropped: Arc::clone(&world.dropped) };
        let event = rest.with(Which::Simulated(loose));
        world.trace_event(driver, socket, &event);
        into.push(Completion { token: state.token, socket, event });
    }
}

pub(super) fn take_in(
    world: &mut World,
    driver: usize,
    loose: Loose,
    token: Token,
) -> io::Result<Socket> {
    let Loose(Which::Simulated(mut loose)) = loose else {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the simulated network has no descriptors",
        ));
    };
    if !Arc::ptr_eq(&loose.dropped, &world.dropped) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "a connection of another world"));
    }
    let Some(id) = loose.end.take() else { return Err(io::ErrorKind::NotConnected.into()) };
    let socket = world.drivers[driver].insert(token, Kind::Stream { end: id, connected: true });
    if let Some(end) = world.ends.get_mut(id) {
        end.owner = Owner::Driver { driver, socket };
        // The kernel reports each end of the stream as often as it is asked.
        end.told = false;
    }
    Ok(socket)
}

/// Closes the dropped ends.
pub(super) fn close_dropped(world: &mut World) {
    let dropped =
        std::mem::take(&mut *world.dropped.lock().unwrap_or_else(PoisonError::into_inner));
    dropped.into_iter().for_each(|end| world.close_end(end, false));
}
