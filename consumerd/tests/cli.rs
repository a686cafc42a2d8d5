//! The command line: configuration and exit codes.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};

fn consumerd(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blkin-consumerd"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn with_file(text: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    (file, path)
}

#[test]
fn the_example_configuration_passes_the_check() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/config.example.toml");
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("not/yet/socket");
    let output = consumerd(&["--check-config", "--config", example, "--socket", socket.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "the configuration is good\n");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn an_unwritable_socket_folder_is_a_configuration_error() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("socket"), "/proc/self/socket");
    let good = good.to_str().unwrap();
    for (socket, control, key) in [(bad, good, ": socket: "), (good, bad, ": control_socket: ")] {
        let sockets = ["--socket", socket, "--control-socket", control];
        let output = consumerd(&[&["--check-config", "--config", "/dev/null"][..], &sockets].concat());
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(key) && said.contains("/proc/self cannot be written"), "{said}");
    }
}

#[test]
fn an_unwritable_json_lines_path_is_a_configuration_error() {
    let folder = tempfile::tempdir().unwrap();
    let there = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (socket, missing, not_there) =
        (there("socket"), there("missing/lines"), there("missing does not exist"));
    let checked = |lines: &str| {
        let places = ["--check-config", "--config", "/dev/null", "--socket", &socket, "--json-lines", lines];
        consumerd(&places)
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    for good in [&there("lines"), file.path().to_str().unwrap(), "/dev/stdout"] {
        assert_eq!(checked(good).status.code(), Some(0), "{good}");
    }
    for (bad, said) in [
        (&*missing, &*not_there),
        (folder.path().to_str().unwrap(), "is a folder"),
        ("/proc/self/lines", "/proc/self cannot be written"),
    ] {
        let output = checked(bad);
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(words.contains("--json-lines: json_lines: ") && words.contains(said), "{words}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Otherwise whoever reads only the log would rely on a daemon that is about to end.
#[test]
fn a_failed_ready_file_prevents_the_ready_log_line() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let places = ["--config", "/dev/null", "--scan", "false", "--socket", socket.to_str().unwrap()];
    let rest = ["--http-listen", "127.0.0.1:0", "--ready-file", "/nowhere/ready.json"];
    let output = consumerd(&[&places[..], &rest].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("failed to write the ready file") && !said.contains(": ready "), "{said}");
}

#[test]
fn a_bad_configuration_exits_with_78_and_names_the_key() {
    for (text, named) in [("quiet = 3\n", "quiet"), ("poll_idle_ms = 0\n", "poll_idle_ms"), ("= =", "parse")]
    {
        let (_file, path) = with_file(text);
        let output = consumerd(&["--check-config", "--config", &path]);
        assert_eq!(output.status.code(), Some(78));
        assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{output:?}");
    }
}

#[test]
fn a_port_in_use_by_another_program_fails_without_waiting() {
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let places = ["--config", "/dev/null", "--socket", socket.to_str().unwrap(), "--http-listen", &address];
    let output = consumerd(&places);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(&format!(
            "failed to listen on {address}; set `http_listen`, or stop the program that uses it: "
        )),
        "{said}"
    );
    assert!(!said.contains("waiting"), "{said}");
}

#[test]
fn wrong_usage_exits_with_2_and_a_failure_with_1() {
    assert_eq!(consumerd(&["--no-such-flag"]).status.code(), Some(2));
    assert_eq!(consumerd(&["worker"]).status.code(), Some(1));
    let output = consumerd(&["--socket", "/proc/nowhere/socket", "--http-listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("failed to listen"), "{output:?}");
}

/// The output of a daemon that bash starts with this limit.
fn limited(ulimit: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut limited = Command::new("bash");
    let start = format!(r#"ulimit {ulimit}; exec "$@""#);
    limited.args(["-c", &start, "bash", env!("CARGO_BIN_EXE_blkin-consumerd"), "--config", "/dev/null"]);
    limited.arg("--socket").arg(folder.path().join("socket")).args(["--http-listen", "127.0.0.1:0"]);
    limited.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_small_file_size_limit_is_an_error_not_a_signal() {
    let output = limited("-f 1000");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("File too large"), "{output:?}");
}

/// Otherwise workers that cannot even start would be started again and again.
#[test]
fn a_small_open_file_limit_is_reported_at_start() {
    for limit in ["16", "24", "28"] {
        let output = limited(&format!("-n {limit}"));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = format!("the limit of open files is {limit}, and the daemon needs 64 or more");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn a_flag_overrides_a_variable_and_either_overrides_the_file() {
    let (_file, path) = with_file("scribe_upstream = \"bad\"\n");
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let common = ["--check-config", "--config", &path, "--socket", socket.to_str().unwrap()];
    assert_eq!(consumerd(&common).status.code(), Some(78));
    let arguments = [&common[..], &["--scribe-upstream", "127.0.0.1:9410"]].concat();
    assert_eq!(consumerd(&arguments).status.code(), Some(0));
    for (flags, variable) in [(&common[..], "127.0.0.1:9410"), (&arguments, "worse")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_blkin-consumerd"));
        command.args(flags).env("BLKIN_CONSUMERD_SCRIBE_UPSTREAM", variable);
        assert_eq!(command.output().unwrap().status.code(), Some(0), "{variable}");
    }
}

#[test]
fn an_invalid_variable_is_named_with_the_expected_form() {
    for (variable, text, said) in [
        (
            "BLKIN_CONSUMERD_QUEUE_BYTES",
            "64M",
            "\"64M\" cannot be used; write a whole number of 0 or more, such as 67108864",
        ),
        ("BLKIN_CONSUMERD_BATCH_BYTES", "64M", "write a whole number of 0 or more, such as 1048576"),
        ("BLKIN_CONSUMERD_WORKER_UID", "me", "write a whole number of 0 or more, such as 1000"),
        ("BLKIN_CONSUMERD_HTTP_LISTEN", "9412", "write ADDRESS:PORT, such as 127.0.0.1:9410"),
        ("BLKIN_CONSUMERD_SCAN", "yes", "write true or false"),
        ("BLKIN_CONSUMERD_LOG_FORMAT", "xml", "write `text` or `json`"),
        ("BLKIN_LOG_FORMAT", "xml", "write `text` or `json`"),
        ("BLKIN_LOG", "loud", "use a level (error, warn, info, debug, trace"),
        ("BLKIN_CONSUMERD_QUIET_MS", "0", "0 is not between 1 and 86400000"),
        ("BLKIN_CONSUMERD_CONFIG", "", "name a file"),
        ("BLKIN_CONSUMERD_QUEUE_BYTE", "64", "BLKIN_CONSUMERD_QUEUE_BYTES if that is meant"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_blkin-consumerd"));
        let output = command.arg("--check-config").env(variable, text).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(
            words.contains(&format!("failed to use the variable {variable}: ")) && words.contains(said),
            "{words}"
        );
        assert_eq!(output.status.code(), Some(78), "{words}");
    }
}

#[test]
fn optional_paths_can_be_emptied_by_flag_and_variable() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    // The file's paths cannot be used; flags and variables override them below.
    let (_file, path) = with_file("control_socket = \"/\"\njson_lines = \"/nowhere/lines\"\n");
    let common = ["--check-config", "--config", &path, "--socket", socket.to_str().unwrap()];
    assert_eq!(consumerd(&common).status.code(), Some(78));
    let by_flag = consumerd(&[&common[..], &["--control-socket", "", "--json-lines", ""]].concat());
    assert_eq!(by_flag.status.code(), Some(0), "{}", String::from_utf8_lossy(&by_flag.stderr));
    let mut command = Command::new(env!("CARGO_BIN_EXE_blkin-consumerd"));
    command.args(common).env("BLKIN_CONSUMERD_CONTROL_SOCKET", "").env("BLKIN_CONSUMERD_JSON_LINES", "");
    let by_environment = command.output().unwrap();
    let said = String::from_utf8_lossy(&by_environment.stderr);
    assert_eq!(by_environment.status.code(), Some(0), "{said}");
}

#[test]
fn an_invalid_address_is_reported_with_its_location() {
    let (_file, path) = with_file("log = \"info\"\nhttp_listen = \"bad\"\n");
    for (arguments, code, place) in [
        (["--config", &path], 78, format!("{path}, line 2: http_listen: \"bad\"")),
        (["--http-listen", "bad"], 2, "\"bad\"".to_owned()),
    ] {
        let refused = consumerd(&[&arguments[..], &["--check-config"]].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains(&format!("{place} is not an address to listen on")), "{said}");
        assert_eq!(refused.status.code(), Some(code), "{said}");
    }
}
