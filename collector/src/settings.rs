//! The configuration as it is now: SIGHUP changes what can change while the collector runs.

/// Shared by all that work with the configuration.
pub type Settings = blkin_daemon::Settings<crate::config::Config>;
