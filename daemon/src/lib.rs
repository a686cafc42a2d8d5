//! What every BlkKin daemon does alike: configuration, logs, metrics, health, signals.
