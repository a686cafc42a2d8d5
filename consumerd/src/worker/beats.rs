//! The holder's beats, for `/healthz`: they say that the holder is alive, and whether its sockets are at their paths.

use blkin_daemon::{Health, Heartbeat};

/// Heartbeats of the holder and of its sockets.
pub(super) struct Beats {
    holder: Heartbeat,
    /// Rests while the sockets are in place, so that a silent holder shows only as `holder`.
    sockets: Heartbeat,
    has_sockets: bool,
}

impl Beats {
    /// Starts before the first beat.
    pub(super) fn of_holder(health: &Health) -> Self {
        let sockets = health.worker("socket");
        sockets.rest();
        Self { holder: health.worker("holder"), sockets, has_sockets: true }
    }

    /// Takes a beat of the holder.
    pub(super) fn hear(&mut self, has_sockets: bool) {
        self.holder.beat();
        if std::mem::replace(&mut self.has_sockets, has_sockets) == has_sockets {
            return;
        }
        // When the sockets are lost this is the last beat until they are back, so `socket` will count as stuck.
        if has_sockets { self.sockets.rest() } else { self.sockets.beat() }
    }

    /// The holder's last message has come.
    pub(super) fn finish(self) {
        self.holder.finish();
        self.sockets.finish();
    }
}
