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
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};

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
    #[error("failed to parse the configuration {}: {source}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: toml::de::Error,
    },
    /// A key of the file is unknown, or its value has the wrong type.
    #[error("failed to use the configuration {}: {reason}; remove or correct that key", path.display())]
    File {
        /// The file.
        path: PathBuf,
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
        table = read_table(path)?;
        let in_file = |reason| ConfigError::File { path: path.to_path_buf(), reason };
        understood::<C>(&table).map_err(in_file)?;
    }
    table.extend(environment(&as_table(&C::default())?, prefix, |name| std::env::var_os(name))?);
    table.extend(as_table(overrides)?);
    understood(&table).map_err(ConfigError::Value)
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
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<toml::Table, ConfigError> {
    let mut said = toml::Table::new();
    for (key, default) in defaults {
        let name = format!("{prefix}{}", key.to_uppercase());
        let Some(text) = variable(&name) else { continue };
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

fn read_table(path: &Path) -> Result<toml::Table, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_path_buf(), source };
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_path_buf(), bytes });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    text.parse().map_err(|source| ConfigError::Syntax { path: path.to_path_buf(), source })
}

/// How an upstream is written, for whoever wrote it otherwise.
pub const HOST_AND_PORT: &str = "HOST:PORT, such as 10.0.0.5:9410 or [fd00::5]:9410";

/// Whether `text` is the name or address of a host, and a port: what an upstream is, but not a URL. An address of version 6
/// stands in brackets, for its last part looks like a port.
pub fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_name = !host.is_empty() && host.chars().all(is_of_name);
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_address = |text: &str| text.split('%').next().is_some_and(|text| text.parse::<Ipv6Addr>().is_ok());
    (is_name || bracketed.is_some_and(is_address)) && port.parse::<u16>().is_ok_and(|port| port > 0)
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
        let variable = |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, text)| text.into());
        environment(&defaults, "BLKIN_X_", variable).map(|said| said.try_into().unwrap())
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
        let file = file("lisen = 'a:2'\n");
        let error =
            layered::<Config>(Some(file.path()), NOWHERE, &Overrides::default()).unwrap_err().to_string();
        assert!(error.contains("lisen") && error.contains(&file.path().display().to_string()), "{error}");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_an_error_that_names_its_key() {
        let file = file("queue = 'many'\n");
        let error =
            layered::<Config>(Some(file.path()), NOWHERE, &Overrides::default()).unwrap_err().to_string();
        assert!(error.contains("expected usize in `queue`; remove or correct that key"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_toml_is_an_error_that_names_the_file() {
        let file = file("= =\n");
        let error =
            layered::<Config>(Some(file.path()), NOWHERE, &Overrides::default()).unwrap_err().to_string();
        assert!(error.contains(&file.path().display().to_string()), "{error}");
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

    #[test]
    fn an_upstream_is_a_host_and_a_port_and_no_url() {
        for good in ["10.0.0.5:9410", "collector_1.site:9410", "[::1]:9410", "[fe80::1%eth0]:9410"] {
            assert!(is_host_and_port(good), "{good}");
        }
        for bad in
            ["", "a", ":9410", "a:", "a:0", "a:65536", "http://10.0.0.5:9410", "http:a:9410", "a b:1", "a:1/"]
        {
            assert!(!is_host_and_port(bad), "{bad}");
        }
        // Perhaps the port 9410 of ::1, and perhaps the address ::1:9410 without its port.
        for bad in ["::1:9410", "fd00::5", "[::1:9410", "[::1]9410", "[]:9410", "[a]:9410"] {
            assert!(!is_host_and_port(bad), "{bad}");
        }
    }
}
