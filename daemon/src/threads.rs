//! Threads, which the system may refuse: where a control group, a unit or a user has as many as it may.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use tokio::runtime::Runtime;

/// Threads that a server has from its start for work that may take long. One of them waits for the thread that it cannot do
/// without; what asks for more of them than the system gives waits for these.
const SPARE: usize = 4;

/// Starts a thread.
///
/// # Errors
/// When the system gives none: it says which, and what to raise.
pub fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(work).map_err(|error| {
        io::Error::new(error.kind(), format!("failed to start the thread {name}; {}", too_many(&error)))
    })
}

/// Says what to raise where the system gives no thread, nor a process.
pub fn too_many(error: &io::Error) -> io::Error {
    let told = format!(
        "raise what limits threads (TasksMax= of the unit, pids.max of the control group, ulimit -u, memory): {error}"
    );
    io::Error::new(error.kind(), told)
}

/// Whether a server on so many threads may start. Its runtime would not tell: it panics over a thread that it is not given, and
/// then waits for the others without end.
pub(crate) fn check(of_runtime: usize) -> io::Result<()> {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let threads =
        (0..of_runtime + SPARE).map(|_| start("trial", passing(&gate))).collect::<io::Result<Vec<_>>>();
    drop(closed);
    // None of them panics.
    threads?.into_iter().for_each(|thread| drop(thread.join()));
    Ok(())
}

/// Has the runtime start its spare threads, all at once. A runtime whose only threads for long work wait for something without
/// end would take more of it, and neither begin nor refuse it.
pub(crate) fn start_spare(runtime: &Runtime) {
    let gate = Arc::new(Mutex::new(()));
    let _closed = gate.lock();
    (0..SPARE).for_each(|_| drop(runtime.spawn_blocking(passing(&gate))));
}

/// Work that ends once a gate is open.
fn passing(gate: &Arc<Mutex<()>>) -> impl FnOnce() + Send + 'static {
    let gate = gate.clone();
    move || drop(gate.lock())
}
