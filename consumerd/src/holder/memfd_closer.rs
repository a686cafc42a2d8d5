//! A thread that closes the memory files of released programs.
//!
//! The last close of a segment frees its memory page by page, which takes longer than everything else that is done for a
//! program. Without the thread no other program would be admitted meanwhile.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use blkin_daemon::threads;

/// Most programs whose files wait to be closed: they occupy file descriptors until then.
const MOST_WAITING: usize = 32;

/// The way to the thread that closes.
#[derive(Debug)]
pub(super) struct MemfdCloser(SyncSender<[OwnedFd; 2]>);

impl MemfdCloser {
    /// Starts the thread. If it cannot be started, [`close`](Self::close) closes the files itself.
    pub(super) fn start() -> MemfdCloser {
        let (to_close, closing) = sync_channel(MOST_WAITING);
        if let Err(error) = threads::start("blkin-burial", move || close_all(&closing)) {
            tracing::debug!("failed to start the thread that closes: {error}");
        }
        MemfdCloser(to_close)
    }

    /// Closes a program's memory files: in the thread, or here if too many wait for it.
    pub(super) fn close(&self, files: [OwnedFd; 2]) {
        let _closed_here = self.0.try_send(files);
    }
}

fn close_all(closing: &Receiver<[OwnedFd; 2]>) {
    closing.iter().for_each(drop);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipes() -> ([OwnedFd; 2], [OwnedFd; 2]) {
        let [one, other] = [(); 2].map(|()| rustix::pipe::pipe().unwrap());
        ([one.0, other.0], [one.1, other.1])
    }

    /// Waits for the end of each stream, which comes when its writing end is closed.
    fn is_closed(files: [OwnedFd; 2]) -> bool {
        files.iter().all(|file| rustix::io::read(file, &mut [0; 1]) == Ok(0))
    }

    #[test]
    fn descriptors_are_closed_even_when_the_queue_is_full() {
        let closer = MemfdCloser::start();
        let read: Vec<_> = (0..4 * MOST_WAITING)
            .map(|_| {
                let (ours, theirs) = pipes();
                closer.close(theirs);
                ours
            })
            .collect();
        assert!(read.into_iter().all(is_closed));
    }

    #[test]
    fn the_caller_closes_descriptors_if_there_is_no_thread() {
        let closer = MemfdCloser(sync_channel(MOST_WAITING).0);
        let (ours, theirs) = pipes();
        closer.close(theirs);
        assert!(is_closed(ours));
    }
}
