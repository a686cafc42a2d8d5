//! Which number is whose, written down in the staging memory. What is staged of a program is of use to the next daemon
//! only if the program has the same number there, and it may be one that systemd has not been told of yet, or keeps no
//! more of: that one is found again alive, and known by its segment.
//!
//! The inode tells: the kernel counts up those of memory files, and this one was in use until the daemon before ended.

use std::collections::BTreeMap;
use std::io;

use super::held::{HeldPrograms, Identity};
use crate::staging::layout::{NUMBER_ROW_BYTES, NUMBERS_AT};
use crate::staging::{Geometry, Memory, NumberRow, Staging};

/// The table as it is in the memory.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The row of each number.
    rows: BTreeMap<u64, u64>,
    free: Vec<u64>,
}

impl Numbers {
    /// Reads the table, and has those who hold the segments that are in it get their numbers again. What cannot be is
    /// left out, as a number that was never given.
    ///
    /// # Errors
    /// When the memory cannot be read.
    pub(super) fn read(
        memory: &impl Memory,
        geometry: Geometry,
        held: &mut HeldPrograms,
    ) -> io::Result<Self> {
        let mut numbers = Self::default();
        let mut known = BTreeMap::new();
        for (row, found) in (0..).zip(rows(memory, geometry)?) {
            match found.filter(|found| found.number < held.next_number()) {
                Some(found) if !known.contains_key(&found.number) => {
                    known.insert(found.number, (found.device, found.inode));
                    numbers.rows.insert(found.number, row);
                }
                _ => numbers.free.push(row),
            }
        }
        known.into_iter().for_each(|(number, identity)| held.know(identity, number));
        Ok(numbers)
    }

    /// Writes down whose a number is, if there is room.
    ///
    /// # Errors
    /// When the memory cannot be written.
    pub(super) fn note(
        &mut self,
        memory: &mut impl Memory,
        number: u64,
        identity: Identity,
    ) -> io::Result<()> {
        if self.rows.contains_key(&number) {
            return Ok(());
        }
        let Some(row) = self.free.pop() else { return Ok(()) };
        self.rows.insert(number, row);
        let (device, inode) = identity;
        memory.write(place(row), &NumberRow { number, device, inode }.encode())
    }

    /// The number is nobody's any more.
    ///
    /// # Errors
    /// As above.
    pub(super) fn forget(&mut self, memory: &mut impl Memory, number: u64) -> io::Result<()> {
        let Some(row) = self.rows.remove(&number) else { return Ok(()) };
        self.free.push(row);
        memory.write(place(row), &0_u64.to_le_bytes())
    }

    /// Whoever was not found again will not be, and whoever is held has a row.
    ///
    /// # Errors
    /// As above.
    pub(super) fn agree(&mut self, memory: &mut impl Memory, held: &HeldPrograms) -> io::Result<()> {
        let gone: Vec<_> = self.rows.keys().copied().filter(|number| held.get(*number).is_none()).collect();
        gone.into_iter().try_for_each(|number| self.forget(memory, number))?;
        held.iter().try_for_each(|(number, held)| self.note(memory, number, held.identity))
    }
}

/// The largest number of which the table or a checkpoint knows that it was given, 0 if there is none. Whoever has a
/// number that is in neither was let go, and nobody remembers it.
pub(super) fn last_given(memory: &impl Memory, geometry: Geometry) -> u64 {
    let noted = rows(memory, geometry).into_iter().flatten().flatten().map(|row| row.number).max();
    let checkpoint = Staging::newest_checkpoint(memory, geometry).ok().flatten();
    noted.max(checkpoint.map(|checkpoint| checkpoint.last_program)).unwrap_or(0)
}

/// Every row; `None` of one that is free or damaged.
fn rows(memory: &impl Memory, geometry: Geometry) -> io::Result<Vec<Option<NumberRow>>> {
    let mut bytes = vec![0; geometry.numbers_bytes as usize];
    memory.read(NUMBERS_AT, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(NumberRow::decode).collect())
}

fn place(row: u64) -> u64 {
    NUMBERS_AT + row * NUMBER_ROW_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::holder::held::tests::memfd;
    use crate::link::Program;
    use crate::staging::Memfd;
    use std::os::fd::OwnedFd;

    fn offer(held: &mut HeldPrograms, segment: &OwnedFd) -> u64 {
        let program = Program { number: 0, uid: 1, pid: 1, comm: "x".into() };
        held.admit(program, segment.try_clone().unwrap(), memfd()).unwrap()
    }

    /// A daemon with room for so many programs, some of whose numbers were given out before.
    fn daemon(max_programs: usize, next_number: u64) -> (Geometry, HeldPrograms) {
        let config = Config { max_programs, ..Config::default() };
        let mut held = HeldPrograms::new(&config);
        held.count_from(next_number);
        (config.geometry(), held)
    }

    fn memory(geometry: Geometry) -> Memfd {
        let mut memory = Memfd::create(geometry.total_bytes()).unwrap();
        Staging::format(&mut memory, geometry).unwrap();
        memory
    }

    #[test]
    fn the_next_daemon_knows_whose_segment_it_is_offered_but_not_one_that_was_let_go() {
        let (geometry, mut held) = daemon(10, 1);
        let mut memory = memory(geometry);
        let mut numbers = Numbers::read(&memory, geometry, &mut held).unwrap();
        let segments = [memfd(), memfd(), memfd()];
        for segment in &segments {
            let number = offer(&mut held, segment);
            let identity = held.get(number).unwrap().identity;
            numbers.note(&mut memory, number, identity).unwrap();
        }
        numbers.forget(&mut memory, 2).unwrap();
        let (_, mut next) = daemon(10, 4);
        let mut numbers = Numbers::read(&memory, geometry, &mut next).unwrap();
        assert_eq!(offer(&mut next, &segments[2]), 3);
        assert_eq!(offer(&mut next, &segments[1]), 4);
        numbers.agree(&mut memory, &next).unwrap();
        let (_, mut last) = daemon(10, 5);
        Numbers::read(&memory, geometry, &mut last).unwrap();
        let given = [0, 1, 2].map(|at| offer(&mut last, &segments[at]));
        assert_eq!(given, [5, 4, 3], "the first was not found again");
    }

    #[test]
    fn numbers_that_were_never_given_and_rows_that_were_cut_are_not_believed() {
        let (geometry, mut held) = daemon(10, 5);
        let mut memory = memory(geometry);
        let segments = [memfd(), memfd(), memfd()];
        let mut rows = Vec::new();
        for (segment, number) in segments.iter().zip([5, 3, 4]) {
            let (_, mut other) = daemon(10, 1);
            offer(&mut other, segment);
            let (device, inode) = other.get(1).unwrap().identity;
            rows.extend(NumberRow { number, device, inode }.encode());
        }
        // The second row has the right number and a wrong inode.
        rows[NUMBER_ROW_BYTES + 16] ^= 1;
        memory.write(NUMBERS_AT, &rows).unwrap();
        let numbers = Numbers::read(&memory, geometry, &mut held).unwrap();
        assert_eq!(numbers.rows.len(), 1);
        assert_eq!([2, 0, 1].map(|at| offer(&mut held, &segments[at])), [4, 5, 6]);
    }

    #[test]
    fn a_table_of_garbage_and_one_that_is_full_do_no_harm() {
        let (geometry, mut held) = daemon(1000, 1 << 60);
        let mut memory = memory(geometry);
        memory.write(NUMBERS_AT, &vec![0x5a; geometry.numbers_bytes as usize]).unwrap();
        let mut numbers = Numbers::read(&memory, geometry, &mut held).unwrap();
        let room = geometry.numbers_bytes / NUMBER_ROW_BYTES as u64;
        for number in 1..=room + 1 {
            // Of no device that there is: segments' own is 1 where memory files are counted from the start.
            numbers.note(&mut memory, number, (u64::MAX, number)).unwrap();
        }
        let read = Numbers::read(&memory, geometry, &mut held).unwrap();
        assert_eq!((numbers.rows.len() as u64, read.rows), (room, numbers.rows.clone()));
        assert_eq!(offer(&mut held, &memfd()), 1 << 60);
    }
}
