//! Configuration in three layers: a TOML file, then the environment, then flags; a later layer overrides an earlier one.
//!
//! A daemon describes its configuration twice, with the same flat key names:
//!
//! - a `Config` (`Deserialize`, `#[serde(default, deny_unknown_fields)]`) that holds every value and its default;
//! - the `Overrides` (`clap::Args` and `Serialize`): its flags, all `Option` and
//!   `#[serde(skip_serializing_if = "Option::is_none")]`. clap does not read the environment: it would report errors there
//!   with another exit code and other messages than ours.
//!
//! [`layered`] lays the environment and the flags over the file and reads the result as a `Config`. So an unknown key or a
//! value of the wrong type is an error wherever it came from, and the error names that place.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};
use toml::de::DeTable;

use crate::keys::{keys, nearest};
use place::{Places, flag};
use unread::advice;
use variables::Variables;
use words::fault;

mod flags;
mod place;
mod unread;
mod variables;
mod words;

pub use place::Place;
pub use variables::path_of;

/// Largest configuration file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("failed to read the configuration {}: {source}; {}", path.display(), advice(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is larger than any configuration needs to be.
    #[error("failed to read the configuration {}: it is larger than the {MAX_FILE_BYTES} bytes that are allowed", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file is not TOML.
    #[error(
        "failed to parse the configuration {}, line {line}: {reason}; write KEY = VALUE, with addresses, paths and other \
         strings in quotes",
        path.display()
    )]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line of the error.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A key or variable is unknown, or a value cannot be used.
    #[error("failed to use {place}: {reason}")]
    Unusable {
        /// Where the key or value comes from.
        place: Place,
        /// The key, and what is wrong with it.
        reason: String,
    },
    /// The configuration could not be converted to or from its serialised form.
    #[error("failed to use the configuration: {0}")]
    Value(String),
    /// A value has the right type but makes no sense. Daemons report the errors of their own checks as this, and
    /// [`Layered::check`] adds where the value comes from.
    #[error("failed to use the configuration: {key}: {reason}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// What is wrong and what is allowed.
        reason: String,
    },
}

/// A configuration, and where each of its values comes from.
#[derive(Debug, Clone)]
pub struct Layered<C> {
    /// The configuration.
    pub config: C,
    places: Places,
}

impl<C> Layered<C> {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The error of the check, with the place of the value that it names.
    pub fn check(&self, check: impl FnOnce(&C) -> Result<(), ConfigError>) -> Result<(), ConfigError> {
        check(&self.config).map_err(|error| match error {
            ConfigError::Invalid { key, reason } => {
                ConfigError::Unusable { place: self.places.of(key), reason: format!("{key}: {reason}") }
            }
            other => other,
        })
    }

    /// Why a start failed: the error of a check of the machine, which names the key and what to do, or else the error of the
    /// start itself. Either way it counts as a failure at run time, which a supervisor tries again: the disk may only be late.
    pub fn explain(
        &self,
        failed: anyhow::Error,
        check: impl FnOnce(&C) -> Result<(), ConfigError>,
    ) -> anyhow::Error {
        self.check(check).map_or_else(anyhow::Error::from, |()| failed)
    }
}

/// The file to read: the one named by the flag, or else by the variable (`prefix` and `CONFIG`), or else the default one if
/// it exists.
///
/// # Errors
/// When the variable is set but empty.
pub fn file_to_read(
    named: Option<&Path>,
    prefix: &str,
    default: &Path,
) -> Result<Option<PathBuf>, ConfigError> {
    let named = match named {
        Some(path) => Some(path.to_path_buf()),
        None => path_of(&format!("{prefix}CONFIG"))?,
    };
    Ok(named.or_else(|| is_there(default).then(|| default.to_path_buf())))
}

/// Whether something has this name, even if it cannot be read. Reading it then reports the error; falling back to the defaults
/// would not be what anybody meant.
fn is_there(path: &Path) -> bool {
    !path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Reads `file` if there is one, lays the environment variables (`prefix` and a key in capitals) and the `flags` over it
/// and returns the result as a `Config`.
///
/// # Errors
/// When the file cannot be read or parsed, a key is unknown, or a value has the wrong type.
pub fn layered<C: Default + Serialize + DeserializeOwned>(
    file: Option<&Path>,
    prefix: &str,
    flags: &impl Serialize,
) -> Result<Layered<C>, ConfigError> {
    let (mut table, mut places) = file.map_or_else(|| Ok(Default::default()), of_file::<C>)?;
    let (variables, flags) = (Variables::of_process(prefix), flags::table(flags)?);
    variables.check_names::<C>()?;
    for (key, name, value) in variables.values::<C>(&flags)? {
        places.set(key, Place::Variable(name));
        table.insert(key.to_owned(), value);
    }
    flags.keys().for_each(|key| places.set(key, flag(key)));
    table.extend(flags);
    let config = understood(table).map_err(|e| ConfigError::Value(e.message().to_owned()))?;
    Ok(Layered { config, places })
}

/// The values of a file, and the line of each.
fn of_file<C: Default + Serialize + DeserializeOwned>(
    path: &Path,
) -> Result<(toml::Table, Places), ConfigError> {
    let text = read(path)?;
    let syntax = |error: toml::de::Error| {
        let span = error.span().unwrap_or_default();
        let (path, line) = (path.to_path_buf(), line_of(&text, span.start));
        match set_before(&text, span) {
            Some(reason) => ConfigError::Unusable { place: Place::File { path, line }, reason },
            None => ConfigError::Syntax { path, line, reason: error.message().to_owned() },
        }
    };
    let parsed = DeTable::parse(&text).map_err(syntax)?;
    if let Some((line, reason)) = slip_in::<C>(&text, parsed.get_ref(), &as_table(&C::default())?) {
        let place = Place::File { path: path.to_path_buf(), line };
        return Err(ConfigError::Unusable { place, reason });
    }
    let lines =
        parsed.get_ref().keys().map(|key| (key.get_ref().to_string(), line_of(&text, key.span().start)));
    Ok((text.parse().map_err(syntax)?, Places::of_file(path, lines)))
}

/// The first error in a file that is TOML but not a configuration: the line, and what is wrong there.
fn slip_in<C: DeserializeOwned>(
    text: &str,
    table: &DeTable<'_>,
    defaults: &toml::Table,
) -> Option<(usize, String)> {
    // A number may fit the type of its key, and still be too large for a TOML table.
    let error = toml::from_str::<C>(text).err().or_else(|| text.parse::<toml::Table>().err())?;
    let place = error.span().unwrap_or_default();
    let keys = keys::<C>();
    let before = table.keys().filter(|key| key.span().start <= place.start);
    let key = before.max_by_key(|key| key.span().start)?.get_ref();
    let reason = if keys.contains(&key.as_ref()) {
        let given = text.get(place.clone()).unwrap_or_default();
        format!("{key}: {}", fault(given, error.message(), defaults.get(key.as_ref())))
    } else {
        let meant = nearest(key, keys).map(|meant| format!(" (is `{meant}` meant?)"));
        format!("there is no key `{key}`{}; remove or correct that key", meant.unwrap_or_default())
    };
    Some((line_of(text, place.start), reason))
}

/// The error at `place` if a key there was already set further up. The text before `place` is valid TOML, and tells the line.
fn set_before(text: &str, place: Range<usize>) -> Option<String> {
    let before = DeTable::parse(text.get(..place.start)?).ok()?;
    let key = text.get(place)?;
    let first = before.get_ref().keys().find(|known| known.get_ref() == key)?;
    let line = line_of(text, first.span().start);
    Some(format!(
        "`{key}` is already set in line {line}; change that line and remove this one (the file as installed sets every key)"
    ))
}

fn line_of(text: &str, place: usize) -> usize {
    1 + text.bytes().take(place).filter(|byte| *byte == b'\n').count()
}

/// A table as a configuration.
fn understood<C: DeserializeOwned>(table: toml::Table) -> Result<C, toml::de::Error> {
    table.try_into()
}

fn as_table(values: &impl Serialize) -> Result<toml::Table, ConfigError> {
    toml::Table::try_from(values).map_err(|e| ConfigError::Value(e.to_string()))
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_path_buf(), source };
    let mut bytes = Vec::new();
    // A device may have no end: no more is read than is needed to know that the file is too large.
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_path_buf() });
    }
    String::from_utf8(bytes).map_err(|wrong| failed(io::Error::new(ErrorKind::InvalidData, wrong)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    /// A prefix with which no variable begins.
    const NOWHERE: &str = "BLKIN_TEST_OF_NOTHING_";

    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    #[serde(default, deny_unknown_fields)]
    pub(super) struct Config {
        pub(super) listen: String,
        pub(super) queue: usize,
        pub(super) share: f64,
        pub(super) events: Vec<String>,
        pub(super) folder: Option<PathBuf>,
        pub(super) user: Option<u32>,
        pub(super) log: String,
    }

    impl Default for Config {
        fn default() -> Self {
            Config {
                listen: "127.0.0.1:1".into(),
                queue: 7,
                share: 1.0,
                events: Vec::new(),
                folder: None,
                user: None,
                log: "info".into(),
            }
        }
    }

    #[derive(Serialize, Default)]
    struct Overrides {
        #[serde(skip_serializing_if = "Option::is_none")]
        listen: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        queue: Option<usize>,
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn nothing_given_means_the_defaults() {
        let read = layered::<Config>(None, NOWHERE, &Overrides::default()).unwrap();
        assert_eq!(read.config, Config::default());
    }

    #[test]
    fn the_file_wins_over_defaults_and_overrides_win_over_the_file() {
        let file = file("listen = 'a:2'\nqueue = 9\n");
        let given = Overrides { queue: Some(11), ..Default::default() };
        let read = layered::<Config>(Some(file.path()), NOWHERE, &given).unwrap();
        assert_eq!(read.config, Config { listen: "a:2".into(), queue: 11, ..Config::default() });
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        let said = |text: &str| {
            let file = file(text);
            let read = layered::<Config>(Some(file.path()), NOWHERE, &Overrides::default());
            read.unwrap_err().to_string().replace(&file.path().display().to_string(), "FILE")
        };
        let error = said("queue = 3\n\nlisen = 'a:2'\n");
        assert!(
            error.contains("FILE, line 3: there is no key `lisen` (is `listen` meant?); remove"),
            "{error}"
        );
        // Of two errors one is reported, with its own line.
        let error = said("queue = 'many'\nlisen = 'a:2'\n");
        assert!(error.contains("FILE, line 2: there is no key `lisen`"), "{error}");
        let error = said("[relay]\nqueue = 3\n");
        assert!(
            error.contains("FILE, line 1: there is no key `relay`; remove or correct that key"),
            "{error}"
        );
    }

    fn refused(path: &Path) -> String {
        layered::<Config>(Some(path), NOWHERE, &Overrides::default()).unwrap_err().to_string()
    }

    #[test]
    fn wrong_type_error_names_the_key_and_gives_an_example() {
        for (value, wrong) in [
            ("'many'", "'many' cannot be used"),
            ("-1", "-1 cannot be used"),
            ("99999999999999999999999", "99999999999999999999999 is too large"),
            ("18446744073709551615", "18446744073709551615 is too large"),
        ] {
            let file = file(&format!("listen = 'a:2'\nqueue = {value}\n"));
            let said = format!(
                "failed to use the configuration {}, line 2: queue: {wrong}; write a whole number of 0 or more, such as 7",
                file.path().display()
            );
            assert_eq!(refused(file.path()), said);
        }
    }

    #[test]
    fn rejected_value_is_reported_with_its_source() {
        let file = file("listen = 'a:2'\nqueue = 3\n");
        let check = |config: &Config| {
            let reason = format!("{} is too many", config.queue);
            Err(ConfigError::Invalid { key: "queue", reason })
        };
        let told = |file: Option<&Path>, queue| {
            let flags = Overrides { queue, ..Default::default() };
            let read = layered::<Config>(file, NOWHERE, &flags).unwrap();
            read.check(check).unwrap_err().to_string()
        };
        let place = format!("the configuration {}, line 2", file.path().display());
        for (said, place) in [
            (told(Some(file.path()), None), place.as_str()),
            (told(Some(file.path()), Some(3)), "the flag --queue"),
            (told(None, None).replace('7', "3"), "a default of the configuration"),
        ] {
            assert_eq!(said, format!("failed to use {place}: queue: 3 is too many"));
        }
    }

    #[test]
    fn unreadable_file_error_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let latin = folder.path().join("latin");
        std::fs::write(&latin, b"log = '\xe4'").unwrap();
        assert!(refused(&latin).ends_with("; save it as UTF-8"), "{}", refused(&latin));
        assert!(refused(folder.path()).ends_with("; name a file in it"), "{}", refused(folder.path()));
        let nowhere = refused(&folder.path().join("nowhere"));
        assert!(nowhere.ends_with("; check that it exists and is readable"), "{nowhere}");
    }

    #[test]
    fn oversized_or_endless_file_is_rejected() {
        let large = file(&"#".repeat(MAX_FILE_BYTES as usize + 1));
        for path in [large.path(), Path::new("/dev/zero")] {
            assert!(
                refused(path).ends_with("it is larger than the 1048576 bytes that are allowed"),
                "{path:?}"
            );
        }
        let most = file(&"#".repeat(MAX_FILE_BYTES as usize));
        layered::<Config>(Some(most.path()), NOWHERE, &Overrides::default()).unwrap();
    }

    #[test]
    fn a_file_that_is_not_toml_is_an_error_that_names_the_file() {
        let file = file("queue = 3\n= =\n");
        let error =
            layered::<Config>(Some(file.path()), NOWHERE, &Overrides::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("{}, line 2: ", file.path().display())), "{error}");
        assert!(!error.contains('\n'), "the error must fit on one line of the log: {error}");
        assert!(
            error.ends_with("; write KEY = VALUE, with addresses, paths and other strings in quotes"),
            "{error}"
        );
    }

    #[test]
    fn a_key_that_is_set_twice_is_named_with_both_lines() {
        for again in ["queue = 4", "  queue='x'"] {
            let file = file(&format!("# of 7\nqueue = 3\nlog = 'info'\n{again}\n"));
            let said = format!(
                "failed to use the configuration {}, line 4: `queue` is already set in line 2; change that line and remove \
                 this one",
                file.path().display()
            );
            let error = refused(file.path());
            assert!(error.starts_with(&said), "{error}");
        }
    }

    #[test]
    fn existing_unreadable_default_file_is_not_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let default = folder.path().join("blkin.toml");
        std::os::unix::fs::symlink("/nonexistent/blkin.toml", &default).unwrap();
        assert_eq!(file_to_read(None, NOWHERE, &default).unwrap(), Some(default));
    }

    #[test]
    fn missing_named_file_is_an_error_but_missing_default_is_not() {
        let missing = Path::new("/nonexistent/blkin.toml");
        assert_eq!(file_to_read(None, NOWHERE, missing).unwrap(), None);
        let named = file_to_read(Some(missing), NOWHERE, missing).unwrap();
        assert!(matches!(
            layered::<Config>(named.as_deref(), NOWHERE, &Overrides::default()),
            Err(ConfigError::Read { .. })
        ));
    }
}
