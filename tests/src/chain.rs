//! A node that ships through two relays, and the check that all of a program's calls arrived.

use anyhow::{Result, ensure};

use crate::daemons::{Node, Setup};
use crate::disk::Disk;
use crate::relays::Relay;
use crate::sums::in_store;

/// consumerd → leaf → root → collector.
#[derive(Debug)]
pub struct Chain {
    /// consumerd and the collector.
    pub node: Node,
    /// The relay that consumerd ships to.
    pub leaf: Relay,
    /// The relay before the collector.
    pub root: Relay,
    /// The disks of leaf and root, if they have disks of their own.
    pub spools: Option<[Disk; 2]>,
}

/// What a disk of [`Chain::start_on_small_disks`] holds.
const SMALL: &str = "64m";

impl Chain {
    /// Starts all four.
    ///
    /// # Errors
    /// When one does not become ready.
    pub fn start() -> Result<Chain> {
        Chain::start_with(Node::without_consumerd(Setup::default())?, None)
    }

    /// Starts all four, relays and collector on disks of their own; needs root.
    ///
    /// # Errors
    /// When one does not become ready, or a disk cannot be mounted.
    pub fn start_on_small_disks() -> Result<Chain> {
        let node = Node::without_consumerd(Setup { store: Some(SMALL), ..Setup::default() })?;
        let disk = |relay| Disk::mount(&Relay::spool(node.folder(), relay), SMALL);
        let spools = [disk("leaf")?, disk("root")?];
        Chain::start_with(node, Some(spools))
    }

    fn start_with(mut node: Node, spools: Option<[Disk; 2]>) -> Result<Chain> {
        let collector = node.collector.address("scribe")?;
        let root = Relay::start(node.folder(), "root", &[&collector], &[])?;
        let leaf = Relay::start(node.folder(), "leaf", &[&root.scribe], &[])?;
        node.ship_to(&leaf.scribe);
        node.start_consumerd()?;
        Ok(Chain { node, leaf, root, spools })
    }

    /// Waits until all of the programs' calls are in the collector, and checks every equation along the chain.
    ///
    /// # Errors
    /// When one does not hold, or anything was lost.
    pub fn settled(&self, calls: i64) -> Result<()> {
        self.node.settled(calls)?;
        self.leaf.drained(0, &[&self.root.scribe])?;
        self.root.drained(0, &[&self.node.collector.address("scribe")?])?;
        let ledger = self.node.ledger()?.and(self.leaf.ledger()?).and(self.root.ledger()?);
        ensure!(ledger.balances(), "an equation does not hold: {ledger:#?}");
        ensure!(ledger.lost() == 0, "something was lost: {ledger:#?}");
        let stored = self.node.collector.metrics()?.sum("blkin_collector_stored_total", &[]);
        ensure!(stored == calls, "{calls} calls, {stored} stored: {ledger:#?}");
        ensure!(in_store(&self.node)? == calls, "the store holds something else than {calls}");
        Ok(())
    }
}
