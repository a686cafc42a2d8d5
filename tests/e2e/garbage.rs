//! A broken program offers segments of the right size, sealed, with a valid header and garbage after it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use anyhow::{Context, Result};
use blkin_tests::arrival::{all_shipped, all_stored};
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::program::Program;
use blkin_tests::wait;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::hostile::{OFFER, send_offer};
use crate::ledger::ROOMY;

const HEADER_BYTES: usize = 4096;

/// The bytes of a memfd that a program holds open.
fn memfd_of(program: &Program, name: &str) -> Result<Vec<u8>> {
    let folder = PathBuf::from(format!("/proc/{}/fd", program.process.pid()));
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let target = fs::read_link(&path)?;
        if target.to_str().is_some_and(|target| target.starts_with(&format!("/memfd:{name} "))) {
            return Ok(fs::read(path)?);
        }
    }
    anyhow::bail!("the program holds no memfd {name}")
}

fn sealed(name: &str, bytes: &[u8], seals: SealFlags) -> Result<OwnedFd> {
    let memfd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::write(&memfd, &bytes[written..])?;
    }
    rustix::fs::fcntl_add_seals(&memfd, seals)?;
    Ok(memfd)
}

/// Pseudo-random numbers, the same in each run (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let number = self.next().to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
    }

    /// Overwrites one in `rarity` bytes on average.
    fn damage(&mut self, bytes: &mut [u8], rarity: u64) {
        for byte in bytes {
            let number = self.next();
            if number.is_multiple_of(rarity) {
                *byte = (number >> 32) as u8;
            }
        }
    }
}

/// Offers a segment and a control block, copied from a program and damaged.
fn offer(node: &Node, segment: &[u8], control: &[u8]) -> Result<()> {
    let size = SealFlags::SHRINK | SealFlags::GROW;
    let segment = sealed("blkin-segment", segment, size | SealFlags::FUTURE_WRITE)?;
    let control = sealed("blkin-control", control, size)?;
    send_offer(node, OFFER, &[segment.as_fd(), control.as_fd()])
}

#[test]
fn corrupt_segments_affect_only_their_own_program() -> Result<()> {
    let node = Node::start(Setup::default())?;
    let tiny = [("BLKIN_RING_BYTES", "65536")];
    let mut copied = Program::start("writer", &["--traces", "20"], &node.socket(), &tiny)?;
    let first = copied.round()?;
    let segment = memfd_of(&copied, "blkin-segment")?;
    let control = memfd_of(&copied, "blkin-control")?;

    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for _ in 0..4 {
        let (mut random, mut random_control) = (segment.clone(), control.clone());
        numbers.fill(&mut random[HEADER_BYTES..]);
        offer(&node, &random, &control)?;
        numbers.fill(&mut random_control);
        offer(&node, &random, &random_control)?;
        offer(&node, &segment, &random_control)?;
        // Valid records among damaged ones get further into consumerd than noise does.
        for rarity in [40, 4_000] {
            let mut damaged = segment.clone();
            numbers.damage(&mut damaged[HEADER_BYTES..], rarity);
            offer(&node, &damaged, &vec![0; control.len()])?;
        }
    }
    wait::until(LIMIT, "a segment of garbage to be read", || {
        let metrics = node.consumerd().ok()?.metrics().ok()?;
        (metrics.sum("blkin_lost_total", &[]) > 0).then_some(())
    })?;

    let shape = ["--traces", "200", "--threads", "2", "--service", "neighbour"];
    let mut neighbour = Program::start("writer", &shape, &node.socket(), &ROOMY)?;
    let calls = neighbour.round()?;
    all_shipped(&node, &neighbour, calls)?;
    all_stored(&node, "neighbour", calls)?;
    let second = copied.round()?;
    all_shipped(&node, &copied, first + second)?;
    let more = neighbour.round()?;
    all_shipped(&node, &neighbour, calls + more)?;
    all_stored(&node, "neighbour", calls + more).context("after another round")
}
