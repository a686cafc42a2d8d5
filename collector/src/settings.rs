//! The configuration as it is now: SIGHUP changes what can change while the collector runs.

use std::sync::{Arc, PoisonError, RwLock};

use crate::config::Config;

/// Shared by all that work with the configuration. Whoever needs several values of one moment takes [`Settings::now`]
/// once.
#[derive(Clone)]
pub struct Settings(Arc<RwLock<Arc<Config>>>);

impl Settings {
    /// Starts with this configuration.
    pub fn new(config: Config) -> Self {
        Settings(Arc::new(RwLock::new(Arc::new(config))))
    }

    /// The configuration of this moment.
    pub fn now(&self) -> Arc<Config> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes what can change from a new configuration, and returns the keys of what differs and cannot.
    pub fn reload(&self, new: Config) -> Vec<&'static str> {
        let mut place = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let (config, fixed) = new.over(&place);
        *place = Arc::new(config);
        fixed
    }
}
