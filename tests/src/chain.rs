//! A node that ships through two relays, and the check that all of a program's calls arrived.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::daemons::{Node, Setup};
use crate::disk::Disk;
use crate::relays::Relay;
use crate::sums::in_store;
use crate::wire::Wire;

/// consumerd → leaf → root → collector.
#[derive(Debug)]
pub struct Chain {
    /// consumerd and the collector.
    pub node: Node,
    /// The relay that consumerd ships to.
    pub leaf: Relay,
    /// The relay before the collector.
    pub root: Relay,
    /// The disks of leaf and root, after [`Chain::start_breakable`].
    pub spools: Option<[Disk; 2]>,
    /// The wires to collector, root and leaf, after [`Chain::start_breakable`].
    pub wires: Vec<Wire>,
}

/// The size of the disks of [`Chain::start_breakable`].
const SMALL: &str = "64m";
/// The I/O timeout of its daemons: shorter than the trouble of a wire may last.
const IMPATIENT: &str = "io_timeout_ms = 500";

impl Chain {
    /// Starts all four.
    ///
    /// # Errors
    /// When one does not become ready.
    pub fn start() -> Result<Chain> {
        Chain::start_with(Node::without_consumerd(Setup::default())?, None)
    }

    /// Starts all four, relays and collector on small disks of their own, and with wires between them; needs root.
    ///
    /// # Errors
    /// When one does not become ready, or a disk cannot be mounted.
    pub fn start_breakable() -> Result<Chain> {
        let node = Node::without_consumerd(Setup { store: Some(SMALL), ..Setup::default() })?;
        let disk = |relay| Disk::mount(&Relay::spool(node.folder(), relay), SMALL);
        let spools = [disk("leaf")?, disk("root")?];
        Chain::start_with(node, Some(spools))
    }

    fn start_with(mut node: Node, spools: Option<[Disk; 2]>) -> Result<Chain> {
        let configuration = node.folder().join("chain.toml");
        fs::write(&configuration, if spools.is_some() { IMPATIENT } else { "" })?;
        let flags = ["--config", configuration.to_str().context("the path is not UTF-8")?];
        let mut wires = Vec::new();
        let mut way_to = |address: String| -> Result<String> {
            if spools.is_none() {
                return Ok(address);
            }
            let wire = Wire::start(&address)?;
            let address = wire.address().to_owned();
            wires.push(wire);
            Ok(address)
        };
        let collector = node.collector.address("scribe")?;
        let root = Relay::start(node.folder(), "root", &[&way_to(collector)?], &flags)?;
        let leaf = Relay::start(node.folder(), "leaf", &[&way_to(root.scribe.clone())?], &flags)?;
        node.ship_to(&way_to(leaf.scribe.clone())?);
        node.add_flags(&flags);
        node.start_consumerd()?;
        Ok(Chain { node, leaf, root, spools, wires })
    }

    /// Waits until all of the programs' calls are in the collector, and checks every equation of each ledger in the chain.
    ///
    /// # Errors
    /// When one does not hold, or anything was lost.
    pub fn settled(&self, calls: i64) -> Result<()> {
        self.node.settled(calls)?;
        for relay in [&self.leaf, &self.root] {
            relay.drained(0, &relay.upstreams())?;
        }
        let ledger = self.node.ledger()?.and(self.leaf.ledger()?).and(self.root.ledger()?);
        ensure!(ledger.balances(), "an equation does not hold: {ledger:#?}");
        ensure!(ledger.lost() == 0, "something was lost: {ledger:#?}");
        let stored = self.node.collector.metrics()?.sum("blkin_collector_stored_total", &[]);
        ensure!(stored == calls, "{calls} calls, {stored} stored: {ledger:#?}");
        ensure!(in_store(&self.node)? == calls, "the store holds something else than {calls}");
        Ok(())
    }
}
