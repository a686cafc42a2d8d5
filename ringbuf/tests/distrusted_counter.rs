//! A program on a machine whose kernel does not trust the time stamp counter reads CLOCK_MONOTONIC. The test simulates such a
//! machine by mounting another list of clock sources over the kernel's, in a mount namespace of the program's own. Without a
//! counter to distrust it shows nothing.

#![cfg(all(target_arch = "x86_64", not(blkin_portable)))]

mod own;

use std::io::Write;
use std::process::Command;

use blkin_ringbuf::ClockKind;
use blkin_ringbuf::process::{Status, init};

const AVAILABLE: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
/// Set for the test inside the namespace.
const INSIDE: &str = "BLKIN_TEST_INSIDE";

/// Whether such namespaces can be made here.
fn has_namespaces() -> bool {
    let made = Command::new("unshare").args(["--mount", "test", "-f", AVAILABLE]).status();
    rustix::process::geteuid().is_root() && made.is_ok_and(|status| status.success())
}

#[test]
fn a_distrusted_counter_is_read_by_neither_program_nor_children() {
    if std::env::var_os(INSIDE).is_some() {
        return reads_monotonic();
    }
    if !has_namespaces() {
        let _ = writeln!(std::io::stderr(), "not shown: this needs root, and mount namespaces");
        return;
    }
    let list = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(list.path(), "hpet acpi_pm \n").expect("it is written");
    let program = std::env::current_exe().expect("this program has a path");
    let script = "mount --bind \"$0\" \"$1\" && exec \"$2\" --exact \
                  a_distrusted_counter_is_read_by_neither_program_nor_children";
    let inside = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(list.path())
        .arg(AVAILABLE)
        .arg(program)
        .env(INSIDE, "1")
        .output()
        .expect("unshare starts");
    let said = String::from_utf8_lossy(&inside.stdout) + String::from_utf8_lossy(&inside.stderr);
    assert!(inside.status.success() && said.contains("1 passed"), "{said}");
}

fn reads_monotonic() {
    assert_eq!(init(), Status::Tracing);
    assert_eq!(own::attach().info().clock, ClockKind::Monotonic);
    // The kernel is not asked again, so its own list does not matter from here on.
    assert!(Command::new("umount").arg(AVAILABLE).status().expect("umount starts").success());
    own::in_forked_child(|| {
        assert_eq!(init(), Status::Tracing);
        assert_eq!(own::attach().info().clock, ClockKind::Monotonic);
    });
}
