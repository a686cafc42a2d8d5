//! The programs' numbers, written down in the staging memory. The next daemon can only use what is staged of a program if the
//! program keeps its number. systemd may not have been told of the program yet, or may have no room to keep it: then the next
//! daemon finds the program alive, and recognises it by its segment.
//!
//! The segment's inode is proof enough: the kernel gives memory files increasing inode numbers, and this one was in use until
//! the previous daemon ended.

use std::collections::BTreeMap;
use std::io;

use super::held::{HeldPrograms, Identity};
use crate::staging::layout::{NUMBER_ROW_BYTES, NUMBERS_AT};
use crate::staging::{Geometry, Memory, NumberRow, Staging};

/// What the table in the staging memory contains.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The table row of each number.
    rows: BTreeMap<u64, u64>,
    free: Vec<u64>,
}

impl Numbers {
    /// Reads the table, so that the programs with its segments get their numbers again. Impossible rows are left out, such as a
    /// number that was never given.
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
        known.into_iter().for_each(|(number, identity)| held.reserve_number(identity, number));
        Ok(numbers)
    }

    /// Writes down the segment of a number, if there is room in the table.
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

    /// Frees the row of a number that no program has any more.
    ///
    /// # Errors
    /// When the memory cannot be written.
    pub(super) fn forget(&mut self, memory: &mut impl Memory, number: u64) -> io::Result<()> {
        let Some(row) = self.rows.remove(&number) else { return Ok(()) };
        self.free.push(row);
        memory.write(place(row), &0_u64.to_le_bytes())
    }

    /// Makes the table agree with the held programs: frees the rows of all others, and gives each held program a row.
    ///
    /// # Errors
    /// When the memory cannot be written.
    pub(super) fn agree(&mut self, memory: &mut impl Memory, held: &HeldPrograms) -> io::Result<()> {
        let gone: Vec<_> = self.rows.keys().copied().filter(|number| held.get(*number).is_none()).collect();
        gone.into_iter().try_for_each(|number| self.forget(memory, number))?;
        held.iter().try_for_each(|(number, held)| self.note(memory, number, held.identity))
    }
}

/// The largest number that was given according to the table or a checkpoint; 0 if there is none. A program whose number is in
/// neither has been released, and nothing refers to it any more.
pub(super) fn last_given(memory: &impl Memory, geometry: Geometry) -> u64 {
    let noted = rows(memory, geometry).into_iter().flatten().flatten().map(|row| row.number).max();
    let checkpoint = Staging::newest_checkpoint(memory, geometry).ok().flatten();
    noted.max(checkpoint.map(|checkpoint| checkpoint.last_program)).unwrap_or(0)
}

/// Every row; `None` for a row that is free or damaged.
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

    /// A daemon with room for so many programs; the numbers below `next_number` were given out before.
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
    fn the_next_daemon_recognises_held_segments_not_released_ones() {
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
        assert_eq!(given, [5, 4, 3], "only a program that the previous daemon held keeps its number");
    }

    #[test]
    fn damaged_rows_and_unassigned_numbers_are_ignored() {
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
    fn a_garbage_table_and_a_full_table_do_no_harm() {
        let (geometry, mut held) = daemon(1000, 1 << 60);
        let mut memory = memory(geometry);
        memory.write(NUMBERS_AT, &vec![0x5a; geometry.numbers_bytes as usize]).unwrap();
        let mut numbers = Numbers::read(&memory, geometry, &mut held).unwrap();
        let room = geometry.numbers_bytes / NUMBER_ROW_BYTES as u64;
        for number in 1..=room + 1 {
            // A device number that no segment can have; 1 could be the real one.
            numbers.note(&mut memory, number, (u64::MAX, number)).unwrap();
        }
        let read = Numbers::read(&memory, geometry, &mut held).unwrap();
        assert_eq!((numbers.rows.len() as u64, read.rows), (room, numbers.rows.clone()));
        assert_eq!(offer(&mut held, &memfd()), 1 << 60);
    }
}
