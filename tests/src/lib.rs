//! The harness of the end-to-end tests: real daemons, real programs, a real Zipkin server and a real browser.
//!
//! | module | one purpose |
//! |---|---|
//! | [`artifacts`] | builds daemons, library and C programs, each once in a test process |
//! | [`wait`] | waits for an event with a limit |
//! | [`ingest`] | posts to the collector |
//! | [`metrics`] | the daemons' metrics, and checks that others can rely on them |
//! | [`objectstore`] | the example object store |
//! | [`process`] | a child process that never outlives its test |
//! | [`daemons`] | consumerd and collector on free ports, and their ledgers |
//! | [`program`] | C programs that count their own calls |
//! | [`sums`] | the check that nothing went uncounted |
//! | [`zipkin`] | the real Zipkin server |
//! | [`browser`] | headless Chromium by WebDriver |
//! | [`relays`] | relays on free ports, and their ledgers |
//! | [`scribe`] | a Scribe server that answers as a test decides |
//! | [`chain`] | a node that ships through two relays |
//! | [`chaos`] | kills and stops daemons, fills disks and breaks wires, in an order that a seed decides |
//! | [`cheat`] | a proxy that loses one annotation without counting it |
//! | [`wire`] | the network between two daemons, which can have trouble |
//! | [`disk`] | small file systems that can be filled |
//! | [`clock`] | measures how far converted times are from the clock |

pub mod arrival;
pub mod artifacts;
pub mod browser;
pub mod chain;
pub mod chaos;
pub mod cheat;
pub mod clock;
pub mod daemons;
pub mod disk;
pub mod ingest;
pub mod metrics;
pub mod objectstore;
pub mod ports;
pub mod process;
pub mod program;
pub mod relays;
pub mod scribe;
pub mod sums;
pub mod wait;
pub mod wire;
pub mod zipkin;
