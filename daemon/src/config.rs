//! Configuration in three layers: a TOML file, then the environment, then flags; the later wins.
//!
//! A daemon describes its configuration twice, with the same flat key names:
//!
//! - a `Config` (`Deserialize`, `#[serde(default, deny_unknown_fields)]`) that holds every value and its default;
//! - the `Overrides` (`clap::Args` with `env`, and `Serialize`), whose fields are all `Option` and
//!   `#[serde(skip_serializing_if = "Option::is_none")]`. clap already lets a flag win over the environment.
//!
//! [`layered`] lays the environment and the overrides over the file and reads the whole as a `Config`, so an unknown key or a
//! value of the wrong type is an error wherever it came from. Every key has a variable, also one that has no flag.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};
use toml::de::DeTable;

use crate::keys::{keys, nearest};

/// Largest configuration file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("failed to read the configuration {}: {source}; check that it exists and is readable", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is longer than any configuration needs to be.
    #[error("failed to read the configuration {}: it has {bytes} bytes, at most {MAX_FILE_BYTES} are allowed", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The file is not TOML.
    #[error(
        "failed to parse the configuration {}, line {line}: {reason}; write KEY = VALUE, addresses, paths and other texts in \
         quotes",
        path.display()
    )]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// Why.
        reason: String,
    },
    /// A key of the file is unknown, or its value has the wrong type.
    #[error("failed to use the configuration {}, line {line}: {reason}; remove or correct that key", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Where in it.
        line: usize,
        /// The key, and what is wrong with it.
        reason: String,
    },
    /// A value has the wrong type.
    #[error("failed to use the configuration: {0}; remove or correct that key")]
    Value(String),
    /// A value is of the right type but makes no sense; daemons report their own checks by this.
    #[error("failed to use the configuration: {key}: {reason}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// What is wrong and what is allowed.
        reason: String,
    },
}

/// The file to read: the one named, or else the default one if it exists.
pub fn file_to_read(named: Option<&Path>, default: &Path) -> Option<PathBuf> {
    match named {
        Some(path) => Some(path.to_path_buf()),
        None => default.exists().then(|| default.to_path_buf()),
    }
}

/// Reads `file` if there is one, lays variables of the environment (`prefix` and a key in capitals) and `overrides` over it
/// and returns the whole as a `Config`.
///
/// # Errors
/// When the file cannot be read or parsed, a key is unknown, or a value has the wrong type.
pub fn layered<C: Default + Serialize + DeserializeOwned>(
    file: Option<&Path>,
    prefix: &str,
    overrides: &impl Serialize,
) -> Result<C, ConfigError> {
    let mut table = toml::Table::new();
    if let Some(path) = file {
        let text = read(path)?;
        table = parse(path, &text)?;
        if let Some((line, reason)) = slip_in::<C>(&text) {
            return Err(ConfigError::File { path: path.to_path_buf(), line, reason });
        }
    }
    let variables: Vec<_> =
        std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text))).collect();
    slips(prefix, keys::<C>(), &variables)?;
    table.extend(environment(&as_table(&C::default())?, prefix, &variables)?);
    table.extend(as_table(overrides)?);
    understood(&table).map_err(ConfigError::Value)
}

/// Where a file that is TOML cannot be made a configuration of: the line, and what is wrong there.
fn slip_in<C: DeserializeOwned>(text: &str) -> Option<(usize, String)> {
    let error = toml::from_str::<C>(text).err()?;
    let place = error.span().map_or(0, |span| span.start);
    let (table, keys) = (DeTable::parse(text).ok()?, keys::<C>());
    let before = table.get_ref().keys().filter(|key| key.span().start <= place);
    let key = before.max_by_key(|key| key.span().start)?.get_ref();
    let reason = if keys.contains(&key.as_ref()) {
        format!("{} in `{key}`", error.message())
    } else {
        let meant = nearest(key, keys).map(|meant| format!(" (is `{meant}` meant?)"));
        format!("there is no key `{key}`{}", meant.unwrap_or_default())
    };
    Some((line_of(text, place), reason))
}

fn line_of(text: &str, place: usize) -> usize {
    1 + text.bytes().take(place).filter(|byte| *byte == b'\n').count()
}

/// Refuses variables that are nearly those of a key. Others that begin with the prefix are somebody else's: those of the
/// command `blkin`, or what Kubernetes tells of a service of the daemon's name.
fn slips(prefix: &str, keys: &[&str], variables: &[(String, OsString)]) -> Result<(), ConfigError> {
    for (name, _) in variables {
        let Some(key) = name.strip_prefix(prefix).map(str::to_lowercase) else { continue };
        if let Some(meant) = nearest(&key, keys).filter(|meant| *meant != key) {
            let meant = meant.to_uppercase();
            return Err(ConfigError::Value(format!(
                "the variable {name} is none of ours; is {prefix}{meant} meant?"
            )));
        }
    }
    Ok(())
}

/// What a table says, or what in it cannot be understood.
fn understood<C: DeserializeOwned>(table: &toml::Table) -> Result<C, String> {
    // Shown, the error names the key, on a line of its own: "invalid type: ...\nin `scan`\n".
    let shown = |e: toml::de::Error| e.to_string().trim_end().replace("\nin `", " in `");
    table.clone().try_into().map_err(shown)
}

fn as_table(values: &impl Serialize) -> Result<toml::Table, ConfigError> {
    toml::Table::try_from(values).map_err(|e| ConfigError::Value(e.to_string()))
}

/// What variables say of the keys that have a default.
fn environment(
    defaults: &toml::Table,
    prefix: &str,
    variables: &[(String, OsString)],
) -> Result<toml::Table, ConfigError> {
    let mut said = toml::Table::new();
    for (key, default) in defaults {
        let name = format!("{prefix}{}", key.to_uppercase());
        let Some((_, text)) = variables.iter().find(|(of, _)| *of == name) else { continue };
        let value = text.to_str().and_then(|text| value_like(default, text));
        let value = value.ok_or_else(|| {
            let given = text.display();
            ConfigError::Value(format!("{name}={given} is no value such as {default}"))
        })?;
        said.insert(key.clone(), value);
    }
    Ok(said)
}

/// A text as it stands, several with commas between, or a number or the like as in the file.
fn value_like(default: &toml::Value, text: &str) -> Option<toml::Value> {
    match default {
        toml::Value::String(_) => Some(text.into()),
        toml::Value::Array(_) => {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            Some(parts.map(toml::Value::from).collect::<Vec<_>>().into())
        }
        _ => {
            let table: toml::Table = format!("value = {text}").parse().ok()?;
            table.into_iter().next().filter(|_| !text.contains('\n')).map(|(_, value)| value)
        }
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_path_buf(), source };
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_path_buf(), bytes });
    }
    std::fs::read_to_string(path).map_err(failed)
}

fn parse(path: &Path, text: &str) -> Result<toml::Table, ConfigError> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = line_of(text, error.span().map_or(0, |span| span.start));
        ConfigError::Syntax { path: path.to_path_buf(), line, reason: error.message().to_owned() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    /// No variable begins like this.
    const NOWHERE: &str = "BLKIN_TEST_OF_NOTHING_";

    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    #[serde(default, deny_unknown_fields)]
    struct Config {
        listen: String,
        queue: usize,
        share: f64,
        events: Vec<String>,
    }

    impl Default for Config {
        fn default() -> Self {
            Config { listen: "127.0.0.1:1".into(), queue: 7, share: 1.0, events: Vec::new() }
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
        let config: Config = layered(None, NOWHERE, &Overrides::default()).unwrap();
        assert_eq!(config, Config::default());
    }

    #[test]
    fn the_file_wins_over_defaults_and_overrides_win_over_the_file() {
        let file = file("listen = 'a:2'\nqueue = 9\n");
        let given = Overrides { queue: Some(11), ..Default::default() };
        let config: Config = layered(Some(file.path()), NOWHERE, &given).unwrap();
        assert_eq!(config, Config { listen: "a:2".into(), queue: 11, ..Config::default() });
    }

    fn of_variables(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let defaults = as_table(&Config::default()).unwrap();
        environment(&defaults, "BLKIN_X_", &given(variables)).map(|said| said.try_into().unwrap())
    }

    fn given(variables: &[(&str, &str)]) -> Vec<(String, OsString)> {
        variables.iter().map(|(name, text)| ((*name).to_owned(), text.into())).collect()
    }

    #[test]
    fn a_variable_that_is_nearly_one_of_ours_is_an_error_that_names_both() {
        let slips = |name: &str| slips("BLKIN_X_", keys::<Config>(), &given(&[(name, "1")]));
        let error = slips("BLKIN_X_LISEN").unwrap_err().to_string();
        assert!(
            error.contains("the variable BLKIN_X_LISEN is none of ours; is BLKIN_X_LISTEN meant?"),
            "{error}"
        );
        for other in ["BLKIN_X_LISTEN", "BLKIN_X_URL", "BLKIN_X_PORT_1463_TCP", "BLKIN_Y_LISEN", "BLKIN_X_"] {
            slips(other).unwrap();
        }
    }

    #[test]
    fn every_key_has_a_variable() {
        let variables = [
            ("BLKIN_X_LISTEN", "a:2"),
            ("BLKIN_X_QUEUE", "11"),
            ("BLKIN_X_SHARE", "0.5"),
            ("BLKIN_X_EVENTS", "end, Span ended,"),
            ("BLKIN_X_URL", "of somebody else"),
        ];
        let events = vec!["end".to_owned(), "Span ended".to_owned()];
        let expected = Config { listen: "a:2".into(), queue: 11, share: 0.5, events };
        assert_eq!(of_variables(&variables).unwrap(), expected);
        assert_eq!(of_variables(&[]).unwrap(), Config::default());
    }

    #[test]
    fn a_variable_that_is_no_value_is_an_error_that_names_it() {
        for text in ["many", "", "1\nlisten = 'b'", "1 2"] {
            let error = of_variables(&[("BLKIN_X_QUEUE", text)]).unwrap_err().to_string();
            assert!(error.contains("BLKIN_X_QUEUE="), "{error}");
        }
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
        // Of two slips one is told of, in its own line.
        let error = said("queue = 'many'\nlisen = 'a:2'\n");
        assert!(error.contains("FILE, line 2: there is no key `lisen`"), "{error}");
        let error = said("[relay]\nqueue = 3\n");
        assert!(
            error.contains("FILE, line 1: there is no key `relay`; remove or correct that key"),
            "{error}"
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_is_an_error_that_names_its_key() {
        let file = file("listen = 'a:2'\nqueue = 'many'\n");
        let error =
            layered::<Config>(Some(file.path()), NOWHERE, &Overrides::default()).unwrap_err().to_string();
        assert!(
            error.contains(", line 2: ") && error.contains("expected usize in `queue`; remove"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_not_toml_is_an_error_that_names_the_file() {
        let file = file("queue = 3\n= =\n");
        let error =
            layered::<Config>(Some(file.path()), NOWHERE, &Overrides::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("{}, line 2: ", file.path().display())), "{error}");
        assert!(!error.contains('\n'), "it is a line of the log: {error}");
        assert!(
            error.ends_with("; write KEY = VALUE, addresses, paths and other texts in quotes"),
            "{error}"
        );
    }

    #[test]
    fn a_named_file_that_is_missing_is_an_error_but_a_missing_default_is_not() {
        let missing = Path::new("/nonexistent/blkin.toml");
        assert_eq!(file_to_read(None, missing), None);
        let named = file_to_read(Some(missing), missing);
        assert!(matches!(
            layered::<Config>(named.as_deref(), NOWHERE, &Overrides::default()),
            Err(ConfigError::Read { .. })
        ));
    }
}
