//! Reuses the memory for drained records: if it were allocated for each frame, part of it would go back to the kernel each time,
//! and the kernel would zero it again.

/// Most buffers that are kept.
const MOST: usize = 32;
/// Most bytes of all kept buffers.
const MOST_BYTES: usize = 2 << 20;

/// Emptied buffers; the one used last is taken first, while it is still in the CPU's cache.
#[derive(Debug, Default)]
pub(super) struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// An empty buffer.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub(super) fn put(&mut self, mut buffer: Vec<u8>) {
        let waiting: usize = self.0.iter().map(Vec::capacity).sum();
        if self.0.len() < MOST && buffer.capacity() > 0 && waiting + buffer.capacity() <= MOST_BYTES {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_buffers_are_kept_emptied_and_no_large_one() {
        let mut spare = Spare::default();
        spare.put(Vec::with_capacity(MOST_BYTES + 1));
        spare.put(Vec::new());
        assert_eq!(spare.take().capacity(), 0);
        (0..2 * MOST).for_each(|_| spare.put(vec![1; 100]));
        assert!((0..MOST).all(|_| spare.take().is_empty()));
        assert_eq!(spare.take().capacity(), 0);
    }
}
