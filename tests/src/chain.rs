//! A node that ships through two relays, and the check that all of a program's calls arrived.

use anyhow::{Result, ensure};

use crate::daemons::{Node, Setup};
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
}

impl Chain {
    /// Starts all four.
    ///
    /// # Errors
    /// When one does not become ready.
    pub fn start() -> Result<Chain> {
        let mut node = Node::without_consumerd(Setup::default())?;
        let collector = node.collector.address("scribe")?;
        let root = Relay::start(node.folder(), "root", &[&collector], &[])?;
        let leaf = Relay::start(node.folder(), "leaf", &[&root.scribe], &[])?;
        node.ship_to(&leaf.scribe);
        node.start_consumerd()?;
        Ok(Chain { node, leaf, root })
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
