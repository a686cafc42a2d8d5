//! What earlier daemons drained of a program, according to its control page: settled when the daemon ended, or lost with it.

use crate::staging::ProgramState;

/// Records that were drained before this daemon attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EarlierDrains {
    /// Records that were acknowledged or counted as lost.
    pub(super) settled: u64,
    /// The other records: their daemon ended before it knew what became of them. They may have arrived.
    pub(super) unsettled: u64,
    /// For each ring, how many records were drained and how many of these were settled. An earlier worker of this daemon may
    /// have published figures there, too, so a ring's first frame in the staging memory overrides them.
    rings: Vec<Option<(u64, u64)>>,
}

impl EarlierDrains {
    /// From the control page's figures of each ring, drained and settled. The program may write there, too, so they can be any
    /// numbers, and sums may wrap.
    pub(super) fn of_page(rings: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut drains = EarlierDrains { rings: rings.map(Some).collect(), ..EarlierDrains::default() };
        for ring in 0..drains.rings.len() {
            if let Some((drained, settled)) = drains.rings[ring] {
                drains.add(drained, settled);
            }
        }
        drains
    }

    /// As an earlier worker of this daemon found the figures and saved them.
    pub(super) fn of_checkpoint(saved: &ProgramState) -> Self {
        EarlierDrains { settled: saved.drained_before, unsettled: saved.unsettled, rings: Vec::new() }
    }

    /// Notes that this daemon itself has drained the ring from `records` on.
    pub(super) fn begins_at(&mut self, ring: usize, records: u64) {
        let Some((drained, settled)) = self.rings.get_mut(ring).and_then(Option::take) else { return };
        self.settled = self.settled.wrapping_sub(drained.min(settled));
        self.unsettled = self.unsettled.wrapping_sub(drained.saturating_sub(settled));
        self.add(records, settled);
    }

    fn add(&mut self, drained: u64, settled: u64) {
        self.settled = self.settled.wrapping_add(drained.min(settled));
        self.unsettled = self.unsettled.wrapping_add(drained.saturating_sub(settled));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settled_and_unsettled_are_separated_ring_by_ring() {
        let drains = EarlierDrains::of_page([(10, 10), (7, 3), (0, 0), (5, 9)].into_iter());
        assert_eq!((drains.settled, drains.unsettled), (10 + 3 + 5, 4));
    }

    #[test]
    fn own_records_do_not_count_and_none_counts_twice() {
        let mut drains = EarlierDrains::of_page([(10, 6), (7, 7)].into_iter());
        drains.begins_at(0, 8);
        assert_eq!((drains.settled, drains.unsettled), (6 + 7, 2));
        drains.begins_at(0, 3);
        drains.begins_at(9, 3);
        assert_eq!((drains.settled, drains.unsettled), (6 + 7, 2));
    }

    #[test]
    fn absurd_figures_in_a_page_saturate() {
        let drains = EarlierDrains::of_page([(u64::MAX, 0), (u64::MAX, u64::MAX)].into_iter());
        assert_eq!((drains.settled, drains.unsettled), (u64::MAX, u64::MAX));
    }
}
