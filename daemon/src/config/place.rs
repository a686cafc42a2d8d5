//! Where a value comes from, so that the user knows what to correct.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The default of the key.
    Default,
    /// The configuration file.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The line in the file.
        line: usize,
    },
    /// This environment variable.
    Variable(String),
    /// This flag.
    Flag(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Default => f.write_str("a default of the configuration"),
            Place::File { path, line } => write!(f, "the configuration {}, line {line}", path.display()),
            Place::Variable(name) => write!(f, "the variable {name}"),
            Place::Flag(name) => write!(f, "the flag {name}"),
        }
    }
}

/// The place of each key that does not have its default.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(HashMap<String, Place>);

impl Places {
    pub(super) fn of_file(path: &Path, lines: impl IntoIterator<Item = (String, usize)>) -> Self {
        let place = |line| Place::File { path: path.to_path_buf(), line };
        Places(lines.into_iter().map(|(key, line)| (key, place(line))).collect())
    }

    pub(super) fn set(&mut self, key: &str, place: Place) {
        self.0.insert(key.to_owned(), place);
    }

    pub(super) fn of(&self, key: &str) -> Place {
        self.0.get(key).cloned().unwrap_or(Place::Default)
    }
}

/// The flag of a key: clap derives both from the same name.
pub(super) fn flag(key: &str) -> Place {
    Place::Flag(format!("--{}", key.replace('_', "-")))
}
