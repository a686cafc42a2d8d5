//! A Tokio runtime for a separate thread, created on a thread that already runs another runtime.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, EnterGuard, Runtime};

/// The runtime. If its thread cannot be started, it is dropped within the other runtime, where Tokio panics if a drop has to wait;
/// so this one is shut down in the background.
#[derive(Debug)]
pub(crate) struct SecondRuntime(Option<Runtime>);

impl SecondRuntime {
    /// Builds the runtime.
    pub(crate) fn build(builder: &mut Builder) -> io::Result<SecondRuntime> {
        Ok(SecondRuntime(Some(builder.enable_all().build()?)))
    }

    /// Makes it the current runtime while the guard lives, so that sockets created meanwhile belong to it.
    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        self.0.as_ref().map(Runtime::enter)
    }

    /// Runs it on this thread until `work` has ended.
    pub(crate) fn drive<T>(self, work: impl Future<Output = T>) -> Option<T> {
        self.0.as_ref().map(|runtime| runtime.block_on(work))
    }
}

impl Drop for SecondRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_runtime_can_be_dropped_inside_another_runtime() {
        let runtime = SecondRuntime::build(&mut Builder::new_current_thread()).unwrap();
        let (driven, told) = tokio::sync::oneshot::channel();
        drop(SecondRuntime::build(&mut Builder::new_current_thread()).unwrap());
        let thread = std::thread::spawn(move || runtime.drive(async { driven.send(()).unwrap() }));
        told.await.unwrap();
        thread.join().unwrap();
    }
}
