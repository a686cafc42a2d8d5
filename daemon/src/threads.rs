//! Starting threads. The system may refuse: a control group, a unit or a user may have reached its limit.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use tokio::runtime::Runtime;

/// Threads that a server starts in advance for blocking work. One of them waits for the end of a thread that the server cannot do
/// without. If the system later gives no more threads, all further blocking work waits for these.
const SPARE: usize = 4;

/// Starts a thread.
///
/// # Errors
/// When the system refuses: the error says which thread, and which limit to raise.
pub fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(work).map_err(|error| {
        io::Error::new(error.kind(), format!("failed to start the thread {name}; {}", too_many(&error)))
    })
}

/// Adds which limits to raise to the error of a thread or process that could not be started.
pub fn too_many(error: &io::Error) -> io::Error {
    let told = format!(
        "raise what limits threads (TasksMax= of the unit, pids.max of the control group, ulimit -u, memory): {error}"
    );
    io::Error::new(error.kind(), told)
}

/// Checks that the system would give a runtime this many threads, and the spare ones. Tokio reports no error: it panics if it
/// does not get a thread, and then waits for the other threads for ever.
pub(crate) fn check(of_runtime: usize) -> io::Result<()> {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let threads =
        (0..of_runtime + SPARE).map(|_| start("trial", passing(&gate))).collect::<io::Result<Vec<_>>>();
    drop(closed);
    // These threads cannot panic.
    threads?.into_iter().for_each(|thread| drop(thread.join()));
    Ok(())
}

/// Has the runtime start its spare threads, all at once. Without them, and with no more threads from the system, a runtime whose
/// blocking threads all wait for ever would accept more blocking work, and neither start nor refuse it.
pub(crate) fn start_spare(runtime: &Runtime) {
    let gate = Arc::new(Mutex::new(()));
    let _closed = gate.lock();
    (0..SPARE).for_each(|_| drop(runtime.spawn_blocking(passing(&gate))));
}

/// Work that ends once the gate is unlocked.
fn passing(gate: &Arc<Mutex<()>>) -> impl FnOnce() + Send + 'static {
    let gate = gate.clone();
    move || drop(gate.lock())
}
