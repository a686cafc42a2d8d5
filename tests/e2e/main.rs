//! The whole road: programs, rings, consumerd, collector, and what other people built around them.
#![allow(missing_docs)]

mod clock;
mod commands;
mod differential;
mod control;
mod foreign;
mod garbage;
mod hostile;
mod install;
mod ledger;
mod lifecycle;
mod operation;
mod relay;
mod sampling;
mod steady;
mod ui;
mod wake;
mod zipkin;
