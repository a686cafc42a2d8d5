//! What all BlkKin daemons have in common: configuration, logs, metrics, health, signals.
//!
//! - [`config`]: one flat set of keys, filled from a TOML file, then the environment, then flags.
//! - `keys`: the keys of a configuration, and which of them a misspelt key was meant to be.
//! - [`settings`]: the current configuration, which SIGHUP changes.
//! - [`checks`]: the checks of a configuration before a daemon starts.
//! - [`logging`]: structured logs on stderr, as text or JSON, with the filter of the configuration.
//! - `stderr`: the thread that writes the log, so that no other thread waits for its reader.
//! - `journal`: the priority of each line, for systemd's journal.
//! - [`held_bytes`]: the limit on bytes that wait, such as messages for the disk.
//! - [`health`]: workers beat; a dead or stuck one turns `/healthz` red within two seconds.
//! - [`standing`]: whether an upstream or a file accepts what it is given, for logs, `/metrics` and `/healthz`.
//! - `refusal`: when to try again a write that the disk refused.
//! - [`notices`]: how often the log repeats the same message.
//! - [`upstream`]: how an upstream is written, and its addresses.
//! - [`own`]: whether an address leads back to the daemon itself.
//! - [`page_cache`]: reading what is on the disk rather than what the page cache holds.
//! - [`descriptors`]: how many connections the limit on open files leaves room for.
//! - [`admin`]: the `/metrics` and `/healthz` routes.
//! - [`escapes`]: refuses malformed percent escapes in a path or query.
//! - [`drain`]: how long the work under way may take when a server stops.
//! - `presence`: what `/metrics` says about the daemon itself.
//! - [`serve`]: the HTTP server and its limits.
//! - `connection`: HTTP connections that do not wait for a silent peer for ever.
//! - `protocol`: which version of HTTP a connection speaks.
//! - `half_open`: answers for clients that close their direction after the request.
//! - [`places`]: the limit on connections, and which connection makes room for a new one.
//! - `request_pool`: the limit on HTTP/2 requests under way on all connections together.
//! - `sent`: keeps a value until an answer was sent.
//! - `answer_parts`: gives up HTTP/2 answers that their peer does not read.
//! - [`signals`]: SIGTERM and SIGINT start a drain.
//! - [`ready`]: announces that the daemon serves, and on which ports.
//! - [`start`]: listening, the async runtime, the output of `--check-config`.
//! - [`threads`]: starting threads, which the system may refuse.
//! - [`exposition`]: the two formats of `/metrics`.
//! - [`exit`]: the documented exit codes.

pub mod admin;
mod answer_parts;
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
pub mod held_bytes;
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
mod request_pool;
mod sent;
pub mod serve;
pub mod settings;
pub mod signals;
pub mod standing;
pub mod start;
mod stderr;
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
