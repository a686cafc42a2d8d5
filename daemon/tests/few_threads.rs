//! A server to which the system gives no threads, or no further ones.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test stops where it fails, and says why")]

use std::fs::{read_dir, read_to_string};
use std::io::Write;
use std::process::{Command, Output};
use std::thread;

use blkin_daemon::start::run_server;
use rustix::process::{Resource, Rlimit, Uid, getuid, setrlimit};
use rustix::thread::set_thread_res_uid;

/// Tells a process that it is the server, and how many threads it is given.
const IS_GIVEN: &str = "BLKIN_TEST_SERVER_IS_GIVEN";

#[test]
fn server_with_too_few_threads_fails_to_start() {
    for given in ["none", "one"] {
        let Some(told) = server(given) else { return };
        let said = String::from_utf8_lossy(&told.stdout);
        assert!(told.status.success() && said.contains("told failed to start the async runtime"), "{said}");
    }
}

#[test]
fn server_without_further_threads_works_with_those_it_has() {
    let Some(told) = server("no more") else { return };
    let said = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success() && said.contains("answered 64"), "{said}");
}

fn server(is_given: &str) -> Option<Output> {
    if !getuid().is_root() {
        let _ = writeln!(std::io::stderr(), "not shown: this needs root");
        return None;
    }
    let mut command = Command::new("timeout");
    command.arg("60").arg(std::env::current_exe().unwrap()).args([
        "--exact",
        "server_child_process",
        "--nocapture",
    ]);
    let told = command.env(IS_GIVEN, is_given).output().unwrap();
    print!("{}", String::from_utf8_lossy(&told.stderr));
    Some(told)
}

/// Tests nothing by itself: it is the process that the other tests start.
#[test]
fn server_child_process() {
    let Ok(is_given) = std::env::var(IS_GIVEN) else { return };
    let uid = become_somebody_else();
    match &*is_given {
        "none" => give(uid, 0),
        "one" => give(uid, 1),
        _ => {}
    }
    let served = run_server(async move {
        // As a daemon does to wait for the thread that it cannot do without.
        tokio::task::spawn_blocking(thread::park);
        give(uid, 0);
        let works: Vec<_> = (0..64).map(|_| tokio::task::spawn_blocking(|| 1)).collect();
        let mut answers = 0;
        for work in works {
            answers += work.await?;
        }
        println!("\nanswered {answers}");
        Ok(())
    });
    if let Err(failed) = served {
        println!("\ntold {failed}");
    }
}

/// Gives this thread, and those that it starts, a user of their own: root is exempt from the limits.
fn become_somebody_else() -> u32 {
    let uid = 1_000_000 + std::process::id();
    let user = Uid::from_raw(uid);
    set_thread_res_uid(user, user, user).unwrap();
    uid
}

/// Lets the user have this many more threads than it has now.
fn give(uid: u32, more: u64) {
    let tasks = read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("status"));
    let is_his = |status: String| status.lines().any(|line| line.starts_with(&format!("Uid:\t{uid}\t")));
    let has = tasks.filter(|status| read_to_string(status).is_ok_and(is_his)).count() as u64;
    let current = Some(has + more);
    setrlimit(Resource::Nproc, Rlimit { current, maximum: current }).unwrap();
}
