//! What `blkin-relay` reports about configurations, by messages and exit codes.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::process::{Command, Output};

fn relay(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blkin-relay")).args(arguments).output().unwrap()
}

#[test]
fn a_configuration_is_checked_and_a_bad_one_has_its_own_exit_code() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/config.example.toml");
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("spool");
    let good = relay(&["--config", example, "--spool-dir", spool.to_str().unwrap(), "--check-config"]);
    assert_eq!(good.status.code(), Some(0));
    assert_eq!(good.stdout, b"the configuration is good\n");
    assert!(!spool.exists(), "a check creates no folder");
    let file = tempfile::NamedTempFile::new().unwrap();
    for (flag, value, key) in
        [("--upstreams", "nowhere", "upstreams"), ("--spool-dir", file.path().to_str().unwrap(), "spool_dir")]
    {
        let bad = relay(&["--config", example, flag, value, "--check-config"]);
        assert_eq!(bad.status.code(), Some(78));
        assert!(String::from_utf8_lossy(&bad.stderr).contains(key));
    }
    let bare = relay(&["--config", example, "--scribe-listen", "::1:1463", "--check-config"]);
    assert!(String::from_utf8_lossy(&bare.stderr).contains("[::1]:9410"));
    assert_eq!(relay(&["--no-such-flag"]).status.code(), Some(2));
}

#[test]
fn invalid_variable_is_named_and_exits_with_78() {
    for (variable, text) in [
        ("BLKIN_RELAY_SPOOL_BYTES", "1G"),
        ("BLKIN_RELAY_WHEN_FULL", "block"),
        ("BLKIN_RELAY_UPSTREAMS", "nowhere"),
        ("BLKIN_RELAY_QUEUE_MIB", "64M"),
        ("BLKIN_RELAY_SPOOL_DIR", ""),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_blkin-relay"));
        let refused =
            command.args(["--check-config", "--config", "/dev/null"]).env(variable, text).output().unwrap();
        let words = String::from_utf8_lossy(&refused.stderr);
        assert!(words.contains(&format!("failed to use the variable {variable}: ")), "{words}");
        assert_eq!(refused.status.code(), Some(78));
    }
}

#[test]
fn relay_as_its_own_upstream_is_refused_by_check_and_start() {
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("spool");
    let own = ["--scribe-listen", "127.0.0.1:1463", "--upstreams", "127.0.0.1:9410,localhost:1463"];
    let run = |more: &[&str]| {
        let with_spool = ["--spool-dir", spool.to_str().unwrap(), "--http-listen", "127.0.0.1:0"];
        relay(&[&own[..], &with_spool, more].concat())
    };
    for refused in [run(&["--check-config"]), run(&[])] {
        assert_eq!(refused.status.code(), Some(78));
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(words.contains("\"localhost:1463\" is this relay itself"), "{words}");
    }
    assert!(!spool.exists());
}

#[test]
fn a_spool_that_cannot_be_used_ends_the_relay_with_a_reason() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let any = "127.0.0.1:0";
    let failed = relay(&["--spool-dir", path, "--scribe-listen", any, "--http-listen", any]);
    assert_eq!(failed.status.code(), Some(1), "a supervisor may try again: the disk may be mounted late");
    let words = String::from_utf8_lossy(&failed.stderr);
    assert!(
        words.contains("failed to use the flag --spool-dir: spool_dir: ") && words.contains(path),
        "{words}"
    );
}

/// Otherwise a supervisor that only reads the log would rely on a relay that ends.
#[test]
fn relay_does_not_log_ready_if_its_ready_file_fails() {
    let (folder, any) = (tempfile::tempdir().unwrap(), "127.0.0.1:0");
    let places = ["--config", "/dev/null", "--scribe-listen", any, "--http-listen", any, "--spool-dir"];
    let rest = [folder.path().to_str().unwrap(), "--ready-file", "/nowhere/ready.json"];
    let failed = relay(&[&places[..], &rest].concat());
    assert_eq!(failed.status.code(), Some(1));
    let words = String::from_utf8_lossy(&failed.stderr);
    assert!(words.contains("failed to write the ready file") && !words.contains(": ready "), "{words}");
}
