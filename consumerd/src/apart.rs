//! A runtime for a thread of its own, made beside another runtime.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, EnterGuard, Runtime};

/// Such a runtime. Where no thread can be started for it, it is let go within the other one, which Tokio takes for a defect if
/// it has to wait for it.
#[derive(Debug)]
pub(crate) struct Apart(Option<Runtime>);

impl Apart {
    /// As the builder says.
    pub(crate) fn build(builder: &mut Builder) -> io::Result<Apart> {
        Ok(Apart(Some(builder.enable_all().build()?)))
    }

    /// What is made meanwhile belongs to it.
    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        self.0.as_ref().map(Runtime::enter)
    }

    /// Has this thread drive it until the work has ended.
    pub(crate) fn drive<T>(self, work: impl Future<Output = T>) -> Option<T> {
        self.0.as_ref().map(|runtime| runtime.block_on(work))
    }
}

impl Drop for Apart {
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
    async fn it_can_be_let_go_within_another_one() {
        let apart = Apart::build(&mut Builder::new_current_thread()).unwrap();
        let (driven, told) = tokio::sync::oneshot::channel();
        drop(Apart::build(&mut Builder::new_current_thread()).unwrap());
        let thread = std::thread::spawn(move || apart.drive(async { driven.send(()).unwrap() }));
        told.await.unwrap();
        thread.join().unwrap();
    }
}
