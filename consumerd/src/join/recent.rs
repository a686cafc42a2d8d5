//! The last spans that left, in bounded memory.

use std::collections::VecDeque;

use crate::hash::Map;

#[derive(Debug)]
pub(super) struct Recent {
    most: usize,
    /// How often each one stands in `order`.
    known: Map<(u64, u64), u32>,
    order: VecDeque<(u64, u64)>,
}

impl Recent {
    pub(super) fn new(most: usize) -> Self {
        Self { most, known: Map::default(), order: VecDeque::new() }
    }

    pub(super) fn contains(&self, key: (u64, u64)) -> bool {
        self.known.contains_key(&key)
    }

    pub(super) fn insert(&mut self, key: (u64, u64)) {
        *self.known.entry(key).or_insert(0) += 1;
        self.order.push_back(key);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
            && let Some(times) = self.known.get_mut(&oldest)
        {
            *times -= 1;
            if *times == 0 {
                self.known.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_ones_are_known() {
        let mut recent = Recent::new(2);
        for id in [1, 1, 2, 3] {
            recent.insert((id, id));
        }
        assert!(!recent.contains((1, 1)));
        assert!(recent.contains((2, 2)) && recent.contains((3, 3)));
        assert_eq!(recent.known.len(), 2);
    }
}
