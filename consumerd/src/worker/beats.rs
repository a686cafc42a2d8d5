//! What the holder says of itself now and then, for `/healthz`: that it lives, and whether its sockets are where whoever
//! looks for them finds them.

use blkin_daemon::{Health, Heartbeat};

/// Signs of life of both.
pub(super) struct Beats {
    holder: Heartbeat,
    /// Rests while they are found: a holder that says nothing is told of as such alone.
    sockets: Heartbeat,
    has_sockets: bool,
}

impl Beats {
    /// Nothing was heard yet.
    pub(super) fn of_holder(health: &Health) -> Self {
        let sockets = health.worker("socket");
        sockets.rest();
        Self { holder: health.worker("holder"), sockets, has_sockets: true }
    }

    /// The holder has said so.
    pub(super) fn hear(&mut self, has_sockets: bool) {
        self.holder.beat();
        if std::mem::replace(&mut self.has_sockets, has_sockets) == has_sockets {
            return;
        }
        // The last, unless they come back.
        if has_sockets { self.sockets.rest() } else { self.sockets.beat() }
    }

    /// It has said its last.
    pub(super) fn finish(self) {
        self.holder.finish();
        self.sockets.finish();
    }
}
