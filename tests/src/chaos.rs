//! Pseudo-random faults: the same seed gives the same faults in the same order.

use std::fmt;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::chain::Chain;
use crate::daemons::Daemon;
use crate::disk::Disk;
use crate::process::signal_pid;
use crate::wire::{Trouble, Way, Wire};

/// The part of the chain that a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// consumerd's worker, which its holder starts anew.
    Worker,
    /// The relay that consumerd ships to.
    Leaf,
    /// The relay before the collector.
    Root,
    /// The collector.
    Collector,
    /// The disk with the spool of the leaf.
    LeafDisk,
    /// The disk with the spool of the root.
    RootDisk,
    /// The disk with the collector's store.
    Store,
    /// The wire from consumerd to the leaf.
    WireToLeaf,
    /// The wire from the leaf to the root.
    WireToRoot,
    /// The wire from the root to the collector.
    WireToCollector,
}

const DAEMONS: [Victim; 4] = [Victim::Worker, Victim::Leaf, Victim::Root, Victim::Collector];
const DISKS: [Victim; 3] = [Victim::LeafDisk, Victim::RootDisk, Victim::Store];
const WIRES: [Victim; 3] = [Victim::WireToLeaf, Victim::WireToRoot, Victim::WireToCollector];

/// Upper limits of the bytes of calls after which a connection is cut: before the first call is complete, or after many. In
/// between, a large call might never get through while small ones do, and would be given up.
const UP: [usize; 2] = [64, 1 << 18];
/// The same for bytes of answers; an answer has about thirty.
const DOWN: [usize; 2] = [100, 1000];
/// Enough bytes for at least one complete call.
const WHOLE_CALL: usize = 8 << 10;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGTERM.
    Terminate,
    /// SIGSTOP, and SIGCONT later.
    Stop,
    /// A disk is full, and has room again later.
    Fill,
    /// A wire has trouble, which ends later.
    Wire(Trouble),
}

/// A victim under a fault, and the step at which the fault ends.
#[derive(Debug)]
struct Absence {
    victim: Victim,
    fault: Fault,
    process: Option<u32>,
    back_at: u32,
}

/// A chain that suffers faults.
pub struct Chaos {
    /// The chain.
    pub chain: Chain,
    numbers: u64,
    step: u32,
    away: Vec<Absence>,
    collector: [String; 2],
    told: Vec<String>,
}

impl fmt::Debug for Chaos {
    /// Writes the faults so far.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told.join("\n"))
    }
}

impl Chaos {
    /// `seed` decides the faults of `chain`.
    ///
    /// # Errors
    /// When the collector's ready file lacks its addresses.
    pub fn new(chain: Chain, seed: u64) -> Result<Chaos> {
        let collector = &chain.node.collector;
        let addresses = [collector.address("scribe")?, collector.address("http")?];
        Ok(Chaos { chain, numbers: seed, step: 0, away: Vec::new(), collector: addresses, told: Vec::new() })
    }

    /// Ends the faults that are due, and strikes one of the parts without a fault.
    ///
    /// # Errors
    /// When a part does not come back.
    pub fn step(&mut self) -> Result<()> {
        self.step += 1;
        self.bring_back(|absence, step| absence.back_at <= step)?;
        // Daemons may have freed room on full disks by sending on what they had: fill that too.
        self.away.iter().filter_map(|absence| self.disk(absence.victim)).try_for_each(Disk::fill)?;
        let present: Vec<_> = [&DAEMONS[..], &DISKS, &WIRES]
            .concat()
            .into_iter()
            .filter(|victim| self.away.iter().all(|absence| absence.victim != *victim))
            .collect();
        let Some(victim) = self.one_of(&present) else { return Ok(()) };
        let fault = match victim {
            _ if DISKS.contains(&victim) => Fault::Fill,
            _ if WIRES.contains(&victim) => Fault::Wire(self.trouble()),
            _ => self.one_of(&[Fault::Kill, Fault::Terminate, Fault::Stop]).unwrap_or(Fault::Kill),
        };
        let rounds = self.one_of(&[1, 1, 1, 2, 3, 5]).unwrap_or(1);
        self.strike(victim, fault, rounds)
    }

    /// Ends all faults.
    ///
    /// # Errors
    /// When a part does not come back.
    pub fn end(&mut self) -> Result<()> {
        self.bring_back(|_, _| true)
    }

    /// A random trouble of a wire.
    fn trouble(&mut self) -> Trouble {
        let way = self.one_of(&[Way::Up, Way::Down]).unwrap_or(Way::Up);
        let most = self.one_of(if way == Way::Up { &UP } else { &DOWN }).unwrap_or(1);
        let least = if most > WHOLE_CALL { WHOLE_CALL } else { 1 };
        let bytes = least + usize::try_from(self.next()).unwrap_or(0) % (most - least);
        let after = Trouble::CutAfter(way, bytes);
        let (half, one_way) = (Trouble::CutHalf(way), Trouble::SilentOneWay(way));
        let all = [after, after, half, one_way, Trouble::Silent, Trouble::Cut, Trouble::Slow, Trouble::Away];
        self.one_of(&all).unwrap_or(after)
    }

    fn strike(&mut self, victim: Victim, fault: Fault, rounds: u32) -> Result<()> {
        self.told.push(format!("{}: {fault:?} {victim:?} for {rounds}", self.step));
        let process = match (self.disk(victim), fault) {
            (Some(disk), _) => disk.fill().map(|()| None)?,
            (_, Fault::Wire(trouble)) => self.wire(victim)?.suffer(trouble).map(|()| None)?,
            _ => self.hit(victim, fault).map(Some)?,
        };
        self.away.push(Absence { victim, fault, process, back_at: self.step + rounds });
        Ok(())
    }

    /// Signals a process and returns its id.
    fn hit(&mut self, victim: Victim, fault: Fault) -> Result<u32> {
        let process = self.process(victim)?;
        match (fault, self.daemon(victim)) {
            (Fault::Stop, _) => signal_pid(process, Signal::STOP)?,
            // Only the holder asks a worker to end, and only when the holder itself ends; so a worker is killed.
            (_, None) => signal_pid(process, Signal::KILL)?,
            (Fault::Terminate, Some(daemon)) => drop(daemon.process.terminate()?),
            (_, Some(daemon)) => daemon.process.kill()?,
        }
        Ok(process)
    }

    fn bring_back(&mut self, is_due: impl Fn(&Absence, u32) -> bool) -> Result<()> {
        let all = std::mem::take(&mut self.away);
        let (due, still): (Vec<_>, _) = all.into_iter().partition(|absence| is_due(absence, self.step));
        self.away = still;
        due.iter().try_for_each(|absence| {
            self.told.push(format!("{}: back is {:?}", self.step, absence.victim));
            self.back(absence).with_context(|| format!("{self:?}"))
        })
    }

    fn back(&mut self, absence: &Absence) -> Result<()> {
        if let (Fault::Stop, Some(process)) = (absence.fault, absence.process) {
            let resumed = signal_pid(process, Signal::CONT);
            // consumerd kills a worker that is stopped for long; it may be gone.
            return if absence.victim == Victim::Worker { Ok(()) } else { resumed };
        }
        match absence.victim {
            Victim::Worker => {}
            Victim::Leaf => self.chain.leaf.start_again()?,
            Victim::Root => self.chain.root.start_again()?,
            Victim::Collector => {
                let [scribe, http] = &self.collector;
                self.chain.node.start_collector_at(scribe, http)?;
            }
            _ if WIRES.contains(&absence.victim) => self.wire(absence.victim)?.heal()?,
            disk => self.disk(disk).context("no such disk")?.free()?,
        }
        Ok(())
    }

    fn process(&mut self, victim: Victim) -> Result<u32> {
        match self.daemon(victim) {
            Some(daemon) => Ok(daemon.process.pid()),
            None => self.chain.node.worker(),
        }
    }

    /// The daemon of a victim; None for a worker, which belongs to consumerd.
    fn daemon(&mut self, victim: Victim) -> Option<&mut Daemon> {
        match victim {
            Victim::Leaf => Some(&mut self.chain.leaf.daemon),
            Victim::Root => Some(&mut self.chain.root.daemon),
            Victim::Collector => Some(&mut self.chain.node.collector),
            _ => None,
        }
    }

    /// The disk of a victim, if it is one and the chain has it.
    fn disk(&self, victim: Victim) -> Option<&Disk> {
        let spools = self.chain.spools.as_ref();
        match victim {
            Victim::LeafDisk => spools.map(|[leaf, _]| leaf),
            Victim::RootDisk => spools.map(|[_, root]| root),
            Victim::Store => self.chain.node.store.as_ref(),
            _ => None,
        }
    }

    /// The wire of a victim.
    fn wire(&self, victim: Victim) -> Result<&Wire> {
        let place = match victim {
            Victim::WireToLeaf => 2,
            Victim::WireToRoot => 1,
            _ => 0,
        };
        self.chain.wires.get(place).context("no such connection")
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        let number = self.next() % choices.len().max(1) as u64;
        choices.get(usize::try_from(number).ok()?).copied()
    }

    /// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    fn next(&mut self) -> u64 {
        self.numbers = self.numbers.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.numbers ^ self.numbers >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}
