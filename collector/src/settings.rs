//! The current configuration: SIGHUP changes the keys that can change while the collector runs.

/// The current configuration, shared by everything that reads it.
pub type Settings = blkin_daemon::Settings<crate::config::Config>;
