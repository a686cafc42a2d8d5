//! Words that are kept twice, each copy with a checksum: while one copy is being written, or if something else has damaged it,
//! the other copy is whole.

use std::io;

use super::layout::{SECOND_COPY_BYTES, checksum, word};
use super::memory::Memory;

/// Writes words at `at`, then their second copy.
///
/// # Errors
/// When the memory cannot be written.
pub fn write(memory: &mut impl Memory, at: u64, words: &[u64]) -> io::Result<()> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(checksum(&[&bytes]).to_le_bytes());
    [at, at + SECOND_COPY_BYTES].into_iter().try_for_each(|at| memory.write(at, &bytes))
}

/// Reads words from the first whole copy; zeros if none were ever written, and `None` if no copy is whole.
///
/// # Errors
/// When the memory cannot be read.
pub fn read<const WORDS: usize>(memory: &impl Memory, at: u64) -> io::Result<Option<[u64; WORDS]>> {
    let mut is_new = true;
    for at in [at, at + SECOND_COPY_BYTES] {
        let mut bytes = vec![0; 8 * (WORDS + 1)];
        memory.read(at, &mut bytes)?;
        let (words, _) = bytes.split_at(8 * WORDS);
        if checksum(&[words]) == word(&bytes, 8 * WORDS) {
            return Ok(Some(std::array::from_fn(|index| word(words, 8 * index))));
        }
        is_new &= bytes.iter().all(|byte| *byte == 0);
    }
    Ok(is_new.then_some([0; WORDS]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::Memfd;

    const AT: u64 = 64;
    const OLD: [u64; 3] = [1, 0, u64::MAX];
    const NEW: [u64; 3] = [2, 5, u64::MAX];

    fn written(words: [u64; 3]) -> Memfd {
        let mut memory = Memfd::create(4096).unwrap();
        write(&mut memory, AT, &words).unwrap();
        memory
    }

    fn spoil(memory: &mut Memfd, at: u64) {
        let mut byte = [0];
        memory.read(at, &mut byte).unwrap();
        memory.write(at, &[byte[0] ^ 1 << 3]).unwrap();
    }

    #[test]
    fn unwritten_memory_reads_as_zeros() {
        assert_eq!(read(&Memfd::create(4096).unwrap(), AT).unwrap(), Some([0; 3]));
    }

    #[test]
    fn damage_to_one_copy_is_harmless_and_to_both_detected() {
        for byte in 0..32 {
            for copy in [AT, AT + SECOND_COPY_BYTES] {
                let mut memory = written(OLD);
                spoil(&mut memory, copy + byte);
                assert_eq!(read(&memory, AT).unwrap(), Some(OLD));
            }
            let mut memory = written(OLD);
            spoil(&mut memory, AT + byte);
            spoil(&mut memory, AT + SECOND_COPY_BYTES + 31 - byte);
            assert_eq!(read::<3>(&memory, AT).unwrap(), None);
        }
        let mut memory = written(OLD);
        memory.write(AT, &[0; 32]).unwrap();
        assert_eq!(read(&memory, AT).unwrap(), Some(OLD), "zeros do not count as a copy");
    }

    #[test]
    fn a_cut_write_leaves_the_old_or_the_new_value() {
        let new = written(NEW);
        let mut bytes = [0; 32];
        new.read(AT, &mut bytes).unwrap();
        for cut in 0..=32 {
            let mut memory = written(OLD);
            memory.write(AT, &bytes[..cut]).unwrap();
            let found = read(&memory, AT).unwrap();
            assert_eq!(found, Some(if cut == 32 { NEW } else { OLD }), "{cut}");
            memory.write(AT, &bytes).unwrap();
            memory.write(AT + SECOND_COPY_BYTES, &bytes[..cut]).unwrap();
            assert_eq!(read(&memory, AT).unwrap(), Some(NEW));
        }
    }
}
