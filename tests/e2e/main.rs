//! End-to-end tests: programs, rings, consumerd, relays, collector, and other people's software that works with them.
#![allow(missing_docs)]

mod alerts;
mod chaos;
mod clock;
mod commands;
mod control;
mod dashboard;
mod differential;
mod documents;
mod foreign;
mod garbage;
mod hostile;
mod http2;
mod install;
mod ledger;
mod lifecycle;
mod live;
mod notify;
mod operation;
mod order;
mod packages;
mod recorder;
mod relay;
mod sampling;
mod scripts;
mod steady;
mod ui;
mod unread;
mod wake;
mod zipkin;
