//! What every BlkKin daemon does alike: configuration, logs, metrics, health, signals.
//!
//! - [`config`]: one flat set of keys, filled from a TOML file, then the environment, then flags.
//! - `keys`: which keys it has, and which one a slip was meant for.
//! - [`settings`]: the configuration of this moment, which SIGHUP changes.
//! - [`checks`]: what of it is checked before a daemon starts.
//! - [`logging`]: structured logs on stderr, as text or JSON, filtered by what the configuration says.
//! - `stderr`: the thread that writes them, for whose reader nobody else waits.
//! - `journal`: what systemd's journal is told of each line.
//! - [`health`]: workers beat; a dead or stuck one turns `/healthz` red within two seconds.
//! - [`standing`]: how it stands with an upstream or a file, for logs, `/metrics` and `/healthz`.
//! - `refusal`: when it is tried again whether a disk takes something.
//! - [`notices`]: how often the log says the same.
//! - [`upstream`]: how an upstream is named, and its addresses.
//! - [`own`]: whether an address leads back to the daemon itself.
//! - [`page_cache`]: reading what a disk has, and not what it was told.
//! - [`descriptors`]: how many connections the limit of open files leaves room for.
//! - [`admin`]: the `/metrics` and `/healthz` routes.
//! - [`escapes`]: what only looks like an escape in a path or query is refused.
//! - [`drain`]: how long what is under way has when a server ends.
//! - `presence`: what `/metrics` says of every daemon itself.
//! - [`serve`]: how HTTP is served, to how many.
//! - `connection`: HTTP connections that do not wait for a silent peer for ever.
//! - `protocol`: which version of HTTP a connection speaks.
//! - `half_open`: answers for who closes one direction.
//! - [`places`]: for how many connections there is room, and who makes it.
//! - `sent`: what lasts until an answer was sent.
//! - `taken`: answers of HTTP/2 that their peer does not take.
//! - [`signals`]: SIGTERM and SIGINT start a drain.
//! - [`ready`]: tells whoever waits that the daemon serves, and on which ports.
//! - [`start`]: listening, the async runtime, what `--check-config` says.
//! - [`threads`]: starting threads, which the system may refuse.
//! - [`exposition`]: how `/metrics` is written, for whom.
//! - [`exit`]: the documented exit codes.

pub mod admin;
mod beside;
pub mod checks;
pub mod config;
mod connection;
pub mod descriptors;
pub mod drain;
pub mod escapes;
pub mod exit;
pub mod exposition;
mod half_open;
pub mod health;
mod journal;
mod keys;
pub mod logging;
pub mod notices;
pub mod own;
pub mod page_cache;
pub mod places;
mod presence;
mod protocol;
pub mod ready;
mod refusal;
mod sent;
pub mod serve;
pub mod settings;
pub mod signals;
pub mod standing;
pub mod start;
mod stderr;
mod taken;
pub mod threads;
pub mod upstream;

pub use connection::Patience;
pub use exit::Failure;
pub use health::{Health, Heartbeat};
pub use notices::Notices;
pub use places::Places;
pub use prometheus_client;
pub use refusal::Refusal;
pub use settings::{Reloadable, Settings};
pub use standing::{Cause, Standing};
pub use tokio_util::sync::CancellationToken;
