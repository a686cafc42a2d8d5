//! A server whom the system gives no threads, or no more of them.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::process::{Command, Output};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blkin_daemon::start::run_server;
use rustix::process::{Resource, Rlimit, setrlimit};

/// Tells a process that it is the server, and what becomes of it.
const IS_GIVEN: &str = "BLKIN_TEST_SERVER_IS_GIVEN";

/// Address space that a thread takes, and less than two do.
const ONE_THREAD: u64 = 3 << 20;

#[test]
fn a_server_that_is_given_too_few_threads_ends_and_says_what_to_raise() {
    for given in ["none", "one"] {
        let told = server(given);
        let said = String::from_utf8_lossy(&told.stdout);
        assert!(told.status.success() && said.contains("told failed to start the async runtime"), "{said}");
    }
}

#[test]
fn a_server_that_is_given_no_more_threads_does_what_it_is_asked_with_those_it_has() {
    let told = server("no more");
    let said = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success() && said.contains("answered 64"), "{said}");
}

fn server(is_given: &str) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(std::env::current_exe().unwrap()).args(["--exact", "the_server", "--nocapture"]);
    command.env(IS_GIVEN, is_given).output().unwrap()
}

/// Shows nothing by itself: it is the process that the other tests start. A limit of addresses stands for one of threads, which
/// does not bind root.
#[test]
fn the_server() {
    let Ok(is_given) = std::env::var(IS_GIVEN) else { return };
    match &*is_given {
        "none" => leave(0),
        "one" => leave(ONE_THREAD),
        _ => {}
    }
    let served = run_server(async {
        // As a daemon does for the thread that it cannot do without.
        tokio::task::spawn_blocking(thread::park);
        leave(0);
        let taken = take_all();
        let works: Vec<_> = (0..64).map(|_| tokio::task::spawn_blocking(|| 1)).collect();
        let mut answers = 0;
        for work in works {
            answers += work.await?;
        }
        println!("\nanswered {answers}");
        taken.iter().for_each(|thread| thread.thread().unpark());
        Ok(())
    });
    if let Err(failed) = served {
        println!("\ntold {failed}");
    }
}

/// Leaves the process so many bytes more of addresses.
fn leave(bytes: u64) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split_whitespace().next().unwrap().parse().unwrap();
    let current = Some(pages * rustix::param::page_size() as u64 + bytes);
    setrlimit(Resource::As, Rlimit { current, maximum: current }).unwrap();
}

/// Starts threads until there are no more, also of those whose stacks have been kept.
fn take_all() -> Vec<JoinHandle<()>> {
    let waiting = || thread::Builder::new().spawn(|| thread::park_timeout(Duration::from_secs(60)));
    std::iter::from_fn(|| waiting().ok()).collect()
}
