//! Statistics of many times in little memory.

/// How many bits of a time count, from its highest one bit on.
const SIGNIFICANT: u32 = 7;

/// Times, of which sum, shortest and longest are exact and the others are kept with 7 significant bits. Averages and percentiles
/// have a meaning only once there is a time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Times {
    count: u64,
    sum_us: u128,
    min_us: u64,
    max_us: u64,
    /// Rounded numbers, each with the count of the times that have it.
    rounded: Vec<(u16, u64)>,
}

impl Default for Times {
    fn default() -> Times {
        Times { count: 0, sum_us: 0, min_us: u64::MAX, max_us: 0, rounded: Vec::new() }
    }
}

/// The number shared by all times with the same significant bits and length; longer times have greater numbers.
fn rounded(time_us: u64) -> u16 {
    let insignificant = (u64::BITS - time_us.leading_zeros()).saturating_sub(SIGNIFICANT);
    ((u64::from(insignificant) << SIGNIFICANT) + (time_us >> insignificant)) as u16
}

/// The middle of all times with this number.
fn middle_us(number: u16) -> u64 {
    let (insignificant, significant) = (number >> SIGNIFICANT, number % (1 << SIGNIFICANT));
    (u64::from(significant) << insignificant) + (1 << insignificant) / 2
}

impl Times {
    pub(super) fn add(&mut self, time_us: u64) {
        self.add_rounded(rounded(time_us), 1);
        self.count += 1;
        self.sum_us += u128::from(time_us);
        self.min_us = self.min_us.min(time_us);
        self.max_us = self.max_us.max(time_us);
    }

    /// Adds all times of another collection.
    pub(super) fn add_all(&mut self, others: &Times) {
        others.rounded.iter().for_each(|&(number, count)| self.add_rounded(number, count));
        self.count += others.count;
        self.sum_us += others.sum_us;
        self.min_us = self.min_us.min(others.min_us);
        self.max_us = self.max_us.max(others.max_us);
    }

    fn add_rounded(&mut self, number: u16, count: u64) {
        match self.rounded.binary_search_by_key(&number, |&(of, _)| of) {
            Ok(at) => self.rounded[at].1 += count,
            Err(at) => self.rounded.insert(at, (number, count)),
        }
    }

    /// How many times there are.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn average_us(&self) -> f64 {
        self.sum_us as f64 / self.count as f64
    }

    pub(super) fn max_us(&self) -> u64 {
        self.max_us
    }

    /// The least rounded time that this share of all does not exceed.
    pub(super) fn percentile_us(&self, percent: u64) -> u64 {
        let wanted = (self.count * percent).div_ceil(100);
        let mut so_far = 0;
        let mut all = self.rounded.iter();
        all.find(|(_, count)| {
            so_far += count;
            so_far >= wanted
        })
        .map_or(0, |&(number, _)| middle_us(number))
        .clamp(self.min_us, self.max_us)
    }

    /// The same times, without spare memory for more.
    pub(super) fn fitted(mut self) -> Times {
        self.rounded.shrink_to_fit();
        self
    }

    /// About how many bytes of memory the times take.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Times>() + self.rounded.capacity() * size_of::<(u16, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_exact_and_percentiles_within_their_bound() {
        let mut times = Times::default();
        (1..=1000).for_each(|time| times.add(time * 1000));
        assert_eq!((times.count(), times.average_us(), times.max_us()), (1000, 500_500.0, 1_000_000));
        for (percent, exact) in [(50, 500_000), (99, 990_000)] {
            let found = times.percentile_us(percent);
            assert!(found.abs_diff(exact) * 1000 <= exact * 8, "{found} for {exact}");
        }
    }

    #[test]
    fn a_percentile_is_within_its_bound_whatever_the_time() {
        let of_bits = |bits: u32| (64..128_u64).flat_map(move |top| [top << bits, ((top + 1) << bits) - 1]);
        for exact in (0..50).flat_map(of_bits) {
            let mut times = Times::default();
            [0, exact, u64::MAX].into_iter().for_each(|time_us| times.add(time_us));
            let found = times.percentile_us(50);
            assert!(found.abs_diff(exact) * 1000 <= exact * 8, "{found} for {exact}");
        }
    }

    #[test]
    fn times_take_little_memory_however_many_differ() {
        let mut times = Times::default();
        (0..1 << 20).for_each(|time_us| times.add(time_us));
        let of_each_length = 1 << 6;
        assert_eq!(times.rounded.len(), (1 << 7) + (20 - 7) * of_each_length);
    }

    #[test]
    fn percentiles_never_lie_outside_the_recorded_times() {
        let mut times = Times::default();
        (0..100).for_each(|more| times.add(2_100 + more / 10));
        for found in [50, 99].map(|percent| times.percentile_us(percent)) {
            assert!((2_100..=2_109).contains(&found), "{found}");
        }
    }

    #[test]
    fn merging_times_equals_adding_each_of_them() {
        let (mut all, mut some) = (Times::default(), Times::default());
        for time_us in [0, 1, 127, 128, 129, 1000, u64::MAX] {
            all.add(time_us);
            if time_us % 2 == 0 {
                some.add(time_us);
            }
        }
        let mut others = Times::default();
        [1, 127, 129, u64::MAX].into_iter().for_each(|time_us| others.add(time_us));
        some.add_all(&others);
        assert_eq!(some, all);
        some.add_all(&Times::default());
        assert_eq!(some, all);
    }
}
