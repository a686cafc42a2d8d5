//! The harness of the end-to-end tests: real daemons, real programs, a real Zipkin server and a real browser.
//!
//! | module | one purpose |
//! |---|---|
//! | [`artifacts`] | builds daemons, library and C programs, each once a test process |
//! | [`wait`] | waits for an event with a limit |
//! | [`ingest`] | posts to the collector |
//! | [`metrics`] | what daemons tell, and whether it is what others ask for |
//! | [`objectstore`] | the example object store |
//! | [`process`] | a child process that never outlives its test |
//! | [`daemons`] | consumerd and collector on free ports, and their ledgers |
//! | [`program`] | C programs that count their own calls |
//! | [`sums`] | the check that nothing went uncounted |
//! | [`zipkin`] | the real Zipkin server |
//! | [`browser`] | headless Chromium by WebDriver |
//! | [`relays`] | relays on free ports, and their ledgers |
//! | [`scribe`] | a Scribe server that does what a test wants |
//! | [`chain`] | a node that ships through two relays |
//! | [`chaos`] | kills and stops whatever there is, fills its disks and breaks its wires, in an order that a number decides |
//! | [`cheat`] | a man in the middle that loses one annotation and tells nobody |
//! | [`wire`] | the network between two daemons, which can have trouble |
//! | [`disk`] | small file systems, which can be full |
//! | [`clock`] | how far converted times lie from the clock |

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
