//! Compares the manual page's description of `--json` with the output.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

const PAGE: &str = include_str!("../../packaging/man/blkin.1");

/// The answers of a collector and a consumerd, with an example of everything.
fn answer(path: &str) -> &'static str {
    match path.split('?').next().unwrap_or_default() {
        "/api/v2/traces" => r#"[[{"traceId":"1","id":"1","timestamp":1,"duration":1}]]"#,
        "/api/blkin/intervals" => r#"{"traces":1,"services":[{"service":"osd.0"}]}"#,
        "/api/blkin/rejects" => r#"{"counts":{},"recent":[{"peer":"10.0.0.1:5"}]}"#,
        _ => "blkin_collector_received_total 1\nblkin_collector_stored_total 1\n",
    }
}

fn collector() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut asker in listener.incoming().flatten() {
            let mut lines = BufReader::new(asker.try_clone().unwrap()).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            while lines.next().is_some_and(|line| !line.is_empty()) {}
            let body = answer(request.split(' ').nth(1).unwrap_or_default());
            let head =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            let _gone = asker.write_all(format!("{head}{body}").as_bytes());
        }
    });
    address
}

fn add_keys(value: &Value, keys: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                keys.push(key.clone());
                add_keys(value, keys);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| add_keys(value, keys)),
        _ => {}
    }
}

/// The page's description of one command's JSON.
fn told(command: &str) -> &'static str {
    let (_, section) = PAGE.split_once(".Sh JSON\n").unwrap();
    let (_, of_command) = section.split_once(&format!(".It Ic {command}\n")).unwrap();
    of_command.split("\n.It ").next().unwrap()
}

#[test]
fn the_manual_documents_every_json_field() {
    let collector = collector();
    for words in [
        &["traces"][..],
        &["stats", "a", "b"],
        &["rejects"],
        &["ledger", "--consumerd", &collector],
        &["doctor", "--consumerd", &collector, "--socket", "/nonexistent"],
    ] {
        let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
        let printed = blkin.args(words).args(["--json", "--collector", &collector]).output().unwrap();
        let mut keys = Vec::new();
        let mut value: Value = serde_json::from_slice(&printed.stdout).unwrap();
        if words[0] == "doctor" {
            // The page refers to `blkin ledger` for this member.
            value["ledger"] = Value::Null;
        }
        add_keys(&value, &mut keys);
        assert!(keys.len() > 3, "{words:?}: {value}");
        let told = told(words[0]);
        for key in keys {
            assert!(
                told.contains(&format!(".Ql {key}\n")) || told.contains(&format!(".Ql {key} ")),
                "{words:?}: {key}"
            );
        }
    }
}
