//! Whose programs consumerd is asked about, and where: alike for `blkin set` and `blkin snapshot`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::terminal::safe;

/// At most one of them; a command refers to them as the group `target`.
#[derive(Args, Debug)]
#[group(id = "target", multiple = false)]
pub struct Target {
    /// Every program
    #[arg(long)]
    all: bool,
    /// Programs of this name
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// One process
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

impl Target {
    /// Whether there is one.
    pub fn is_given(&self) -> bool {
        self.all || self.label.is_some() || self.pid.is_some()
    }

    /// In the words of consumerd's control socket; all programs if none was given.
    pub fn request(&self) -> Value {
        match (&self.label, self.pid) {
            (Some(label), _) => json!({ "label": label }),
            (None, Some(pid)) => json!({ "pid": pid }),
            (None, None) => json!("all"),
        }
    }

    /// What a sentence about its programs ends with; nothing if they are all.
    pub(crate) fn suffix(&self) -> String {
        match (&self.label, self.pid) {
            (Some(label), _) => format!(" under the name {}", safe(label)),
            (None, Some(pid)) => format!(" under process id {pid}"),
            (None, None) => String::new(),
        }
    }
}

/// Where consumerd is asked.
#[derive(Args, Debug)]
#[group(skip)]
pub struct ControlSocket {
    /// consumerd's control socket
    #[arg(
        id = "socket",
        long = "socket",
        value_name = "PATH",
        env = "BLKIN_CONTROL_SOCKET",
        default_value = "/run/blkin/control.sock"
    )]
    pub path: PathBuf,
}
