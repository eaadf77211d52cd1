//! Messages to the service manager: systemd with `Type=notify`, or any program that sets
//! NOTIFY_SOCKET (sd_notify(3)). Called by `run`. weir never waits: a message that cannot be sent
//! is dropped.

use sd_notify::NotifyState;

/// weir accepts connections, by the configuration in force.
pub(crate) fn ready() {
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}

/// weir reads the configuration again; [`ready`] ends this, whatever the result.
pub(crate) fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
    let _ = sd_notify::notify(&[NotifyState::Reloading, NotifyState::MonotonicUsec(now_us)]);
}

/// A new program is in charge, which is not the service manager's child. Only a message from its
/// predecessor is believed.
pub(crate) fn succeeded_by(pid: u32) {
    let _ = sd_notify::notify(&[NotifyState::MainPid(pid), NotifyState::Ready]);
}

/// weir accepts nothing new.
pub(crate) fn stopping() {
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}
