//! Where a value stands, for who has to correct it.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: it is what a key has by itself.
    Default,
    /// In the file.
    File {
        /// The file.
        path: PathBuf,
        /// Where in it.
        line: usize,
    },
    /// In this variable of the environment.
    Variable(String),
    /// In this flag.
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

/// The flag of a key: clap makes it of the same name.
pub(super) fn flag(key: &str) -> Place {
    Place::Flag(format!("--{}", key.replace('_', "-")))
}
