//! Gives up the rights of root. Called once when a proxy is started, after it has opened the
//! sockets and files that need privileges and before it makes threads: capabilities and "no new
//! privileges" belong to a thread, and later ones inherit them. credentials(7), capabilities(7).

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set,
    set_capabilities, set_keep_capabilities, set_no_new_privs,
};

/// The identity that a process is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its user; not 0.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Vec<u32>,
    /// It may still listen on ports below 1024 (CAP_NET_BIND_SERVICE), and so may programs that it
    /// starts.
    pub keeps_ports: bool,
    /// It may still administer the network (CAP_NET_ADMIN) if it may now, and so may programs that
    /// it starts.
    pub keeps_network: bool,
    /// It may still have sockets with addresses of others (CAP_NET_RAW) if it may now, and so may
    /// programs that it starts.
    pub keeps_raw: bool,
    /// It may still have the kernel run programs (CAP_BPF) if it may now, and so may programs that
    /// it starts.
    pub keeps_bpf: bool,
}

/// Rights that only one thread may have: to administer the network, and to have the kernel run
/// programs there.
const NETWORK: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::BPF);

impl Identity {
    /// Capabilities that it keeps.
    fn kept(&self) -> CapabilitySet {
        let mut kept = CapabilitySet::empty();
        kept.set(CapabilitySet::NET_BIND_SERVICE, self.keeps_ports);
        let may = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted);
        kept.set(
            CapabilitySet::NET_ADMIN,
            self.keeps_network && may.contains(CapabilitySet::NET_ADMIN),
        );
        kept.set(CapabilitySet::NET_RAW, self.keeps_raw && may.contains(CapabilitySet::NET_RAW));
        kept.set(CapabilitySet::BPF, self.keeps_bpf && may.contains(CapabilitySet::BPF));
        kept
    }
}

/// A step that was rejected.
#[derive(Debug)]
pub struct NotDropped {
    /// The request in words, with the capability that it needs.
    pub step: &'static str,
    /// Why not.
    pub error: io::Error,
}

impl NotDropped {
    fn at(step: &'static str) -> impl Fn(io::Error) -> NotDropped {
        move |error| NotDropped { step, error }
    }
}

/// Changes the identity of this process for good: user, group and groups in all of its threads,
/// without capabilities except those that are kept, and no program that it starts gets more
/// (PR_SET_NO_NEW_PRIVS). Programs of the same user can't read its memory afterwards, and the
/// kernel writes no core file ([`hide_memory`]).
///
/// # Errors
/// The rejected step. The process may be half-way then, and should end.
pub fn give_up(identity: &Identity) -> Result<(), NotDropped> {
    let groups = &identity.groups;
    // glibc and musl do these three in all threads, which the system calls alone don't (nptl(7)).
    // SAFETY: the pointer is valid for the given number of elements; the call only reads them.
    check(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) })
        .map_err(NotDropped::at("taking its groups (CAP_SETGID)"))?;
    // SAFETY: the call only takes numbers.
    check(unsafe { libc::setresgid(identity.gid, identity.gid, identity.gid) })
        .map_err(NotDropped::at("taking its group (CAP_SETGID)"))?;
    let kept = identity.kept();
    if !kept.is_empty() {
        set_keep_capabilities(true)
            .map_err(|error| NotDropped::at("keeping capabilities")(error.into()))?;
    }
    // SAFETY: the call only takes numbers.
    check(unsafe { libc::setresuid(identity.uid, identity.uid, identity.uid) })
        .map_err(NotDropped::at("becoming this user (CAP_SETUID)"))?;
    limit(kept)
        .map_err(NotDropped::at("keeping CAP_NET_BIND_SERVICE, which weir must have for that"))?;
    set_no_new_privs(true)
        .map_err(|error| NotDropped::at("refusing new privileges")(error.into()))?;
    hide_memory().map_err(NotDropped::at("hiding its memory"))?;
    // SAFETY: the call only takes numbers.
    if unsafe { libc::setresuid(0, 0, 0) } == 0 {
        let error = io::Error::other("it can become root again");
        return Err(NotDropped { step: "becoming this user permanently", error });
    }
    Ok(())
}

/// Limits this thread to these capabilities.
fn limit(kept: CapabilitySet) -> io::Result<()> {
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
    if !kept.is_empty() {
        // A program that takes over has them as well.
        for one in kept.iter() {
            configure_capability_in_ambient_set(one, true)?;
        }
        set_keep_capabilities(false)?;
    }
    Ok(())
}

/// No other process of this user may look into the memory of this process, which holds keys
/// (PR_SET_DUMPABLE). It lasts until another program is executed.
///
/// # Errors
/// As prctl(2).
pub fn hide_memory() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Takes the right to administer the network (CAP_NET_ADMIN, CAP_BPF) away from this thread, and
/// from those that it starts, unless one of them [takes it up](take_up_network). Programs that they
/// start keep it.
///
/// # Errors
/// As capset(2).
pub fn set_network_aside() -> io::Result<()> {
    change(|sets| sets.effective.remove(NETWORK))
}

/// Lets this thread administer the network, if its process ever might.
///
/// # Errors
/// As capset(2).
pub fn take_up_network() -> io::Result<()> {
    change(|sets| sets.effective |= sets.permitted & NETWORK)
}

/// Takes the right to administer the network away for good from this thread, and from all threads
/// that it starts.
///
/// # Errors
/// As capset(2).
pub fn forgo_network() -> io::Result<()> {
    change(|sets| {
        sets.effective.remove(NETWORK);
        sets.permitted.remove(NETWORK);
        sets.inheritable.remove(NETWORK);
    })
}

fn change(how: impl FnOnce(&mut CapabilitySets)) -> io::Result<()> {
    let mut sets = capabilities(None)?;
    how(&mut sets);
    Ok(set_capabilities(None, sets)?)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
