//! Runs the output of `blkin completion` in the shell for which it is made.

#![allow(clippy::unwrap_used)]

use std::process::Command;

/// The completions that bash offers for the last of these words.
fn offered(words: &str) -> String {
    let completed = format!(
        "source <('{}' completion bash) && COMP_WORDS=({words}) && COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) &&
         _blkin blkin \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\" && echo \"${{COMPREPLY[*]}}\"",
        env!("CARGO_BIN_EXE_blkin")
    );
    let bash = Command::new("bash").args(["-c", &completed]).output().unwrap();
    assert!(bash.status.success(), "{bash:?}");
    String::from_utf8(bash.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn bash_completes_commands_options_and_levels() {
    assert_eq!(offered("blkin tra"), "traces trace");
    assert_eq!(offered("blkin traces --slo"), "--slowest");
    assert_eq!(offered("blkin set --level deb"), "debug");
}
