//! The current configuration. SIGHUP applies the keys that can change while a daemon runs, and the log names the other keys
//! that have changed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Serialize, de::DeserializeOwned};
use tokio::signal::unix::Signal;

use crate::config::ConfigError;
use crate::logging;

/// How many times in a row the configuration was read again and could not be used: the next start would fail.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The value of [`REFUSED`], for the metrics.
pub(crate) fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// A configuration that can be read again.
pub trait Reloadable: Serialize + DeserializeOwned {
    /// Whether a key cannot change while the daemon runs.
    fn needs_restart(key: &str) -> bool;

    /// The log filter.
    fn log_filter(&self) -> &str;
}

/// The current configuration, shared by everything that uses it. Code that needs several consistent values calls
/// [`Settings::now`] once.
#[derive(Debug)]
pub struct Settings<C>(Arc<RwLock<Arc<C>>>);

impl<C> Clone for Settings<C> {
    fn clone(&self) -> Self {
        Settings(self.0.clone())
    }
}

impl<C: Reloadable> Settings<C> {
    /// Starts with this configuration.
    pub fn new(config: C) -> Self {
        Settings(Arc::new(RwLock::new(Arc::new(config))))
    }

    /// The configuration of this moment.
    pub fn now(&self) -> Arc<C> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the configuration again on each signal of `reloads`, applies it, and passes the result to `changed`. Call it in a
    /// tokio runtime.
    pub fn reload_on(
        &self,
        mut reloads: Signal,
        read: impl Fn() -> Result<C, ConfigError> + Send + 'static,
        changed: impl Fn(&C) + Send + 'static,
    ) where
        C: Send + Sync + 'static,
    {
        let settings = self.clone();
        tokio::spawn(async move {
            while reloads.recv().await.is_some() {
                if settings.reload(read()) {
                    changed(&settings.now());
                }
            }
        });
    }

    /// Applies a configuration that was read again, as far as possible, and logs the outcome. Returns whether the
    /// configuration could be used.
    pub fn reload(&self, read: Result<C, ConfigError>) -> bool {
        let followed = read.and_then(|config| self.follow(config));
        match followed {
            Ok(differ) => {
                for key in differ {
                    tracing::warn!("failed to change {key} while running: restart to use its new value");
                }
                REFUSED.store(0, Ordering::Relaxed);
                tracing::info!("read the configuration again");
                true
            }
            Err(error) => {
                REFUSED.fetch_add(1, Ordering::Relaxed);
                tracing::error!("kept the configuration as it was: {error}");
                false
            }
        }
    }

    /// Applies the keys that can change, and returns the other keys that differ.
    fn follow(&self, wanted: C) -> Result<Vec<String>, ConfigError> {
        let mut place = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let (config, differ) = keep_fixed_keys(&wanted, &place)?;
        logging::change(config.log_filter())?;
        *place = Arc::new(config);
        Ok(differ)
    }
}

/// The `wanted` configuration with the `running` value of every key that needs a restart, and the keys for which these differ.
///
/// # Errors
/// When a configuration cannot be converted to or from its serialised form.
fn keep_fixed_keys<C: Reloadable>(wanted: &C, running: &C) -> Result<(C, Vec<String>), ConfigError> {
    let (mut wanted, running) = (members(wanted)?, members(running)?);
    let mut differ = Vec::new();
    for (key, value) in running.into_iter().filter(|(key, _)| C::needs_restart(key)) {
        if wanted.get(&key) != Some(&value) {
            differ.push(key.clone());
            wanted.insert(key, value);
        }
    }
    Ok((serde_json::from_value(wanted.into()).map_err(unread)?, differ))
}

fn members<C: Reloadable>(config: &C) -> Result<serde_json::Map<String, serde_json::Value>, ConfigError> {
    serde_json::to_value(config).and_then(serde_json::from_value).map_err(unread)
}

fn unread(error: serde_json::Error) -> ConfigError {
    ConfigError::Value(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Config {
        log: String,
        listen: String,
        folder: Option<String>,
        rate: f64,
    }

    impl Reloadable for Config {
        fn needs_restart(key: &str) -> bool {
            matches!(key, "listen" | "folder")
        }

        fn log_filter(&self) -> &str {
            &self.log
        }
    }

    fn config() -> Config {
        Config { log: "info".into(), listen: "a:1".into(), folder: None, rate: 1.0 }
    }

    #[test]
    fn reload_applies_what_it_can_and_names_keys_needing_restart() {
        let wanted = Config { listen: "b:2".into(), folder: Some("f".into()), rate: 0.5, ..config() };
        let settings = Settings::new(config());
        let mut differ = settings.follow(wanted).unwrap();
        differ.sort_unstable();
        assert_eq!(differ, ["folder", "listen"]);
        assert_eq!(*settings.now(), Config { rate: 0.5, ..config() });
    }

    #[test]
    fn invalid_reload_changes_nothing_and_is_counted() {
        let settings = Settings::new(config());
        let unusable = Config { log: "loud".into(), rate: 0.5, ..config() };
        assert!(!settings.reload(Ok(unusable)));
        assert!(!settings.reload(Err(ConfigError::Value("no".to_owned()))));
        assert_eq!((settings.now().as_ref(), refused()), (&config(), 2));
        assert!(settings.reload(Ok(Config { rate: 0.1, ..config() })));
        assert_eq!(refused(), 0);
        assert!(settings.now().rate < 0.2);
    }
}
