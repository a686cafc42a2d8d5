//! The exit codes that `blkin --help` lists.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use blkin_ringbuf::saved::{self, Saved};

/// An address at which nothing listens.
const NOBODY: &str = "127.0.0.1:1";

fn code(arguments: &[&str]) -> i32 {
    code_with(arguments, Stdio::null)
}

/// The exit code of a command whose output goes to `output`.
fn code_with(arguments: &[&str], output: impl Fn() -> Stdio) -> i32 {
    let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
    blkin.env("BLKIN_COLLECTOR_URL", NOBODY).args(arguments).stdout(output()).stderr(output());
    blkin.status().unwrap().code().unwrap()
}

/// A pipe without a reader.
fn left() -> Stdio {
    let (_reader, writer) = std::io::pipe().unwrap();
    writer.into()
}

#[test]
fn exit_codes_are_as_documented() {
    assert_eq!(code(&["--help"]), 0);
    assert_eq!(code(&["traces"]), 1, "failed");
    assert_eq!(code(&["recover", "/nonexistent"]), 1, "failed");
    assert_eq!(code(&["ledger", "--consumerd", NOBODY]), 1, "daemons are missing in the ledger");
    assert_eq!(
        code(&["doctor", "--consumerd", NOBODY, "--socket", "/nonexistent"]),
        1,
        "tracing does not work"
    );
    for wrong in [
        &[][..],
        &["trcaes"],
        &["traces", "--limit", "0"],
        &["trace", "xyz"],
        &["set", "--all"],
        &["help", "trcaes"],
    ] {
        assert_eq!(code(wrong), 2, "{wrong:?}");
    }
}

/// The standard error of the command, with a variable set to this value.
fn said_with(variable: &str, value: &str, arguments: &[&str]) -> String {
    let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
    String::from_utf8(blkin.env(variable, value).args(arguments).output().unwrap().stderr).unwrap()
}

#[test]
fn an_empty_url_variable_means_the_default() {
    let doctor = |variable| {
        let arguments = ["doctor", "--consumerd", NOBODY, "--collector", NOBODY, "--socket", "/nonexistent"];
        said_with(variable, "", &arguments)
    };
    assert_eq!(doctor("BLKIN_RELAY_URL"), "");
    assert_eq!(doctor("BLKIN_COLLECTOR_URL"), "");
    let traces = said_with("BLKIN_COLLECTOR_URL", "", &["traces"]);
    assert!(!traces.contains("invalid value"), "{traces}");
}

#[test]
fn an_invalid_url_is_reported_with_its_variable_or_option() {
    const TLS: &str = "https://10.0.0.5:9411";
    let by_variable = said_with("BLKIN_COLLECTOR_URL", TLS, &["traces"]);
    assert!(
        by_variable.contains("invalid value 'https://10.0.0.5:9411' for 'BLKIN_COLLECTOR_URL'"),
        "{by_variable}"
    );
    let by_option = said_with("BLKIN_COLLECTOR_URL", TLS, &["traces", "--collector", TLS]);
    assert!(by_option.contains("for '--collector <URL>'"), "{by_option}");
    let empty_option = said_with("BLKIN_COLLECTOR_URL", "", &["traces", "--collector", ""]);
    assert!(empty_option.contains("--collector <URL>"), "{empty_option}");
    let other_option = said_with("BLKIN_COLLECTOR_URL", TLS, &["traces", "--collector", NOBODY]);
    assert!(!other_option.contains("invalid value"), "{other_option}");
}

#[test]
fn the_usage_line_omits_options_set_by_the_environment() {
    for (words, usage) in
        [(&["trace"][..], "Usage: blkin trace <ID>\n"), (&["stats", "a"], "Usage: blkin stats <FROM> <TO>\n")]
    {
        let said = said_with("BLKIN_COLLECTOR_URL", NOBODY, words);
        assert!(said.contains(usage), "{said}");
    }
}

#[test]
fn an_empty_socket_variable_means_the_default() {
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_blkin"));
    doctor.env("BLKIN_SOCKET", "").args(["doctor", "--consumerd", NOBODY, "--collector", NOBODY]);
    let said = doctor.output().unwrap();
    let found = String::from_utf8(said.stdout).unwrap();
    assert!(found.contains("/run/blkin/consumerd.sock"), "{found}{:?}", said.stderr);
}

#[test]
fn control_characters_in_a_foreign_answer_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answering = std::thread::spawn(move || {
        let (mut asker, _) = listener.accept().unwrap();
        BufReader::new(asker.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
        asker.write_all(br#"{"\u001b[2J\u202e":0}"#).unwrap();
    });
    let mut set = Command::new(env!("CARGO_BIN_EXE_blkin"));
    let said = set.args(["set", "--show", "--socket"]).arg(&path).output().unwrap();
    answering.join().unwrap();
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("unknown variant `\u{fffd}[2J\u{fffd}`"), "{said:?}");
}

/// The address of a collector that answers every request with this status and body.
fn collector(status: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut asker in listener.incoming().flatten() {
            let mut lines = BufReader::new(asker.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
            asker.write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn a_missing_trace_is_a_failure_and_an_empty_list_is_not() {
    let (unknown, nothing) = (collector("404 Not Found", "1 not found"), collector("200 OK", "[]"));
    assert_eq!(code(&["trace", "1", "--collector", &unknown]), 1);
    assert_eq!(code(&["traces", "--service", "unknown", "--collector", &nothing]), 0);
    let none = collector("200 OK", r#"{"counts":{},"recent":[]}"#);
    let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
    let rejects = blkin.args(["rejects", "--collector", &none]).output().unwrap();
    let said = String::from_utf8(rejects.stderr).unwrap();
    assert!(rejects.status.success() && said.contains("since the collector was started"), "{said}");
    assert_eq!(code(&["rejects", "--collector", &nothing]), 1, "not a collector's answer");
}

#[test]
fn proxy_variables_are_ignored() {
    let nothing = collector("200 OK", "[]");
    for variable in ["ALL_PROXY", "HTTPS_PROXY", "http_proxy"] {
        let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
        blkin.env(variable, format!("http://{NOBODY}")).args(["traces", "--collector", &nothing]);
        assert!(blkin.output().unwrap().status.success(), "{variable}");
    }
}

#[test]
fn partly_recovered_files_are_a_success() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = Vec::new();
    saved::write(&Saved::default(), &mut file);
    let mut damaged = file.clone();
    damaged[saved::END_BYTES] ^= 1;
    let cut = &file[..file.len() - saved::END_BYTES];
    for (bytes, expected) in [(&file[..], 0), (&damaged, 0), (cut, 0), (&cut[..8], 1), (b"", 1)] {
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(code(&["recover", path.to_str().unwrap()]), expected, "{} bytes", bytes.len());
    }
}

#[test]
fn help_command_and_option_print_the_same() {
    let said = |arguments: &[&str]| {
        let blkin = Command::new(env!("CARGO_BIN_EXE_blkin")).args(arguments).output().unwrap();
        assert!(blkin.status.success(), "{arguments:?}");
        String::from_utf8(blkin.stdout).unwrap()
    };
    let all = said(&["help"]);
    assert_eq!(all, said(&["--help"]));
    let commands = all.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names: Vec<&str> = commands.map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(names.contains(&"traces") && names.contains(&"help"), "{names:?}");
    for name in names {
        let help = said(&["help", name]);
        assert!(help.contains(&format!("Usage: blkin {name}")), "{help}");
        assert_eq!(help, said(&[name, "--help"]));
    }
}

#[test]
fn failed_writes_to_stdout_are_reported_as_failures() {
    let nothing = collector("200 OK", "[]");
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["help"],
        &["help", "traces"],
        &["traces", "--help"],
        &["traces", "--json", "--collector", &nothing],
        &["doctor", "--consumerd", NOBODY, "--socket", "/nonexistent"],
    ] {
        let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        blkin.env("BLKIN_COLLECTOR_URL", NOBODY).args(arguments).stdout(full);
        let failed = blkin.output().unwrap();
        let said = String::from_utf8_lossy(&failed.stderr);
        assert_eq!(failed.status.code(), Some(1), "{arguments:?}");
        let why = "blkin: failed to write to the standard output: No space left on device";
        assert!(said.starts_with(why), "{arguments:?}: {said}");
    }
}

#[test]
fn exit_codes_are_the_same_with_closed_output() {
    assert_eq!(code_with(&["--help"], left), 0);
    assert_eq!(code_with(&["traces"], left), 1);
    assert_eq!(code_with(&["recover", "/nonexistent"], left), 1);
    assert_eq!(code_with(&["ledger", "--consumerd", NOBODY], left), 1);
    assert_eq!(code_with(&["trcaes"], left), 2);
}
