//! Checks that the daemon's sockets are still at their paths. If somebody removed or replaced their files, the daemon would run
//! on, and no program that starts would reach it.

use super::Holder;

impl Holder<'_> {
    /// Whether all sockets are at their paths; logs when that changes.
    pub(super) fn has_its_sockets(&mut self) -> bool {
        let sockets = [
            (self.offers.is_in_place(), self.config.socket.clone()),
            (self.control.is_in_place(), self.config.control_socket()),
        ];
        let lost = sockets.into_iter().filter_map(|(is_in_place, path)| (!is_in_place).then_some(path));
        let before = std::mem::replace(&mut self.lost, lost.collect());
        for socket in self.lost.iter().filter(|socket| !before.contains(socket)) {
            tracing::error!(
                socket = %socket.display(),
                "the file of a socket was removed or replaced: nobody reaches this daemon there; restart it, and make sure \
                 that no other daemon uses the same path"
            );
        }
        for socket in before.iter().filter(|socket| !self.lost.contains(socket)) {
            tracing::info!(socket = %socket.display(), "the file of a socket is back in its place");
        }
        self.lost.is_empty()
    }
}
