//! What the service manager is told: systemd with `Type=notify`, or anybody who sets NOTIFY_SOCKET (sd_notify(3)). Called by `run`.
//! Nobody waits: what can't be told is not.

use sd_notify::NotifyState;

/// Connections are accepted, by the configuration in force.
pub(crate) fn ready() {
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}

/// The configuration is being read anew; [`ready`] ends it, however it went.
pub(crate) fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
    let _ = sd_notify::notify(&[NotifyState::Reloading, NotifyState::MonotonicUsec(now_us)]);
}

/// A new program is in charge, which is not the service manager's child. It believes that only of the one before it.
pub(crate) fn succeeded_by(pid: u32) {
    let _ = sd_notify::notify(&[NotifyState::MainPid(pid), NotifyState::Ready]);
}

/// Nothing new is accepted.
pub(crate) fn stopping() {
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}
