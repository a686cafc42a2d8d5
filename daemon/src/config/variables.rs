//! Environment variables: each key has one, even a key without a flag.

use std::ffi::OsStr;
use std::path::PathBuf;

use serde::{Serialize, de::DeserializeOwned};
use toml::Value;

use super::words::fault;
use super::{ConfigError, Place, as_table, understood};
use crate::keys::{keys, nearest};

/// Variables that all daemons share, each with its key. They override the daemon's own variable for the same key.
const SHARED: [(&str, &str); 2] = [("BLKIN_LOG", "log"), ("BLKIN_LOG_FORMAT", "log_format")];

/// The environment variables that a daemon reads.
pub(super) struct Variables<'a> {
    prefix: &'a str,
    all: Vec<(String, std::ffi::OsString)>,
}

impl<'a> Variables<'a> {
    /// The variables of this process.
    pub(super) fn of_process(prefix: &'a str) -> Self {
        let all = std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text)));
        Variables { prefix, all: all.collect() }
    }

    /// Refuses variables whose name is nearly that of a key's variable. Other variables with the prefix are left alone: the
    /// command `blkin` has some, and Kubernetes sets some for a service with the daemon's name.
    pub(super) fn check_names<C: DeserializeOwned>(&self) -> Result<(), ConfigError> {
        let keys = keys::<C>();
        for (name, _) in &self.all {
            let Some(key) = name.strip_prefix(self.prefix).map(str::to_lowercase) else { continue };
            let meant = nearest(&key, keys).map(|meant| self.own(meant));
            if let Some(meant) = meant.filter(|meant| meant != name) {
                let reason = format!(
                    "BlkKin has no such variable; unset it, or rename it to {meant} if that is meant"
                );
                return Err(unusable(name, reason));
            }
        }
        Ok(())
    }

    /// The values of all keys that are not already `decided`, each with the variable that sets it.
    pub(super) fn values<C: Default + Serialize + DeserializeOwned>(
        &self,
        decided: &toml::Table,
    ) -> Result<Vec<(&'static str, String, Value)>, ConfigError> {
        let defaults = as_table(&C::default())?;
        let open = keys::<C>().iter().filter(|key| !decided.contains_key(**key));
        let said = open.filter_map(|key| self.of_key(key).map(|(name, text)| (*key, name, text)));
        said.map(|(key, name, text)| {
            let value = value::<C>(key, text, defaults.get(key)).map_err(|fault| unusable(&name, fault))?;
            Ok((key, name, value))
        })
        .collect()
    }

    /// The variable that applies to a key, and its text.
    fn of_key(&self, key: &str) -> Option<(String, &OsStr)> {
        let shared = SHARED.iter().find(|(_, of)| *of == key).map(|(name, _)| (*name).to_owned());
        shared.into_iter().chain([self.own(key)]).find_map(|name| Some((name.clone(), self.text(&name)?)))
    }

    fn own(&self, key: &str) -> String {
        format!("{}{}", self.prefix, key.to_uppercase())
    }

    fn text(&self, name: &str) -> Option<&OsStr> {
        self.all.iter().find(|(of, _)| of == name).map(|(_, text)| text.as_os_str())
    }
}

/// The path that a variable names, if the variable is set.
///
/// # Errors
/// When the variable is empty.
pub fn path_of(name: &str) -> Result<Option<PathBuf>, ConfigError> {
    match std::env::var_os(name) {
        Some(text) if text.is_empty() => {
            Err(unusable(name, "it is empty; unset it, or name a file".to_owned()))
        }
        path => Ok(path.map(PathBuf::from)),
    }
}

fn unusable(name: &str, reason: String) -> ConfigError {
    ConfigError::Unusable { place: Place::Variable(name.to_owned()), reason }
}

/// The value that a text gives to a key, or what is wrong with the text.
fn value<C: DeserializeOwned>(key: &str, text: &OsStr, default: Option<&Value>) -> Result<Value, String> {
    let text = text.to_str().ok_or_else(|| format!("{key}: it is not UTF-8"))?;
    let mut error = String::new();
    for value in readings(text, default) {
        match understood::<C>(toml::Table::from_iter([(key.to_owned(), value.clone())])) {
            Ok(_) => return Ok(value),
            Err(refused) => error = refused.message().to_owned(),
        }
    }
    Err(format!("{key}: {}", fault(&format!("{text:?}"), &error, default)))
}

/// The values that a text may stand for: strings separated by commas if the key has a list; otherwise a number or another
/// TOML value, and the text itself.
fn readings(text: &str, default: Option<&Value>) -> Vec<Value> {
    match default {
        Some(Value::String(_)) => vec![text.into()],
        Some(Value::Array(_)) => {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            vec![parts.map(Value::from).collect::<Vec<_>>().into()]
        }
        _ => scalar(text).into_iter().chain([text.into()]).collect(),
    }
}

fn scalar(text: &str) -> Option<Value> {
    let number = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<f64>().map(Value::from));
    number.ok().or_else(|| {
        let table: toml::Table = format!("value = {text}").parse().ok()?;
        table.into_iter().next().filter(|_| !text.contains('\n')).map(|(_, value)| value)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::Config;
    use super::*;

    fn given<'a>(variables: &[(&str, &str)]) -> Variables<'a> {
        let all = variables.iter().map(|(name, text)| ((*name).to_owned(), text.into()));
        Variables { prefix: "BLKIN_X_", all: all.collect() }
    }

    fn read(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let said = given(variables).values::<Config>(&toml::Table::new())?;
        let table = said.into_iter().map(|(key, _, value)| (key.to_owned(), value)).collect();
        Ok(understood(table).unwrap())
    }

    #[test]
    fn misspelt_variable_error_suggests_the_right_name() {
        let checked = |name: &str| given(&[(name, "1")]).check_names::<Config>();
        let error = checked("BLKIN_X_LISEN").unwrap_err().to_string();
        let said = "the variable BLKIN_X_LISEN: BlkKin has no such variable; unset it, or rename it to BLKIN_X_LISTEN if that \
                    is meant";
        assert!(error.ends_with(said), "{error}");
        let error = checked("BLKIN_X_listen").unwrap_err().to_string();
        assert!(error.ends_with("rename it to BLKIN_X_LISTEN if that is meant"), "{error}");
        for other in ["BLKIN_X_LISTEN", "BLKIN_X_URL", "BLKIN_X_PORT_1463_TCP", "BLKIN_Y_LISEN", "BLKIN_X_"] {
            checked(other).unwrap();
        }
    }

    #[test]
    fn every_key_has_a_variable_even_without_a_default() {
        let variables = [
            ("BLKIN_X_LISTEN", "a:2"),
            ("BLKIN_X_QUEUE", "11"),
            ("BLKIN_X_SHARE", ".5"),
            ("BLKIN_X_EVENTS", "end, Span ended,"),
            ("BLKIN_X_FOLDER", "5"),
            ("BLKIN_X_USER", "1_000"),
            ("BLKIN_X_URL", "of somebody else"),
        ];
        let events = vec!["end".to_owned(), "Span ended".to_owned()];
        let (folder, user, log) = (Some("5".into()), Some(1000), Config::default().log);
        let expected = Config { listen: "a:2".into(), queue: 11, share: 0.5, events, folder, user, log };
        assert_eq!(read(&variables).unwrap(), expected);
        assert_eq!(read(&[]).unwrap(), Config::default());
    }

    #[test]
    fn invalid_variable_error_names_it_and_gives_an_example() {
        for text in ["many", "", "1\nlisten = 'b'", "1 2", "-1", "64M", "0.5"] {
            let error = read(&[("BLKIN_X_QUEUE", text)]).unwrap_err().to_string();
            let said = format!("failed to use the variable BLKIN_X_QUEUE: queue: {text:?} cannot be used; ");
            assert!(error.starts_with(&said) && error.ends_with(" such as 7"), "{error}");
        }
        let error = read(&[("BLKIN_X_USER", "me")]).unwrap_err().to_string();
        assert!(error.contains("BLKIN_X_USER: user: \"me\" cannot be used; write a whole number"), "{error}");
    }

    #[test]
    fn flag_overrides_variable_even_if_the_variable_is_invalid() {
        let decided = toml::Table::from_iter([("queue".to_owned(), Value::from(1))]);
        assert_eq!(given(&[("BLKIN_X_QUEUE", "many")]).values::<Config>(&decided).unwrap(), []);
    }

    #[test]
    fn shared_variable_overrides_the_daemons_own() {
        let (own, shared) = (("BLKIN_X_LOG", "warn"), ("BLKIN_LOG", "debug"));
        assert_eq!(read(&[own]).unwrap().log, "warn");
        assert_eq!(read(&[own, shared]).unwrap().log, "debug");
    }
}
