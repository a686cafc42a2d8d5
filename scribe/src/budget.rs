//! Memory that messages under way may hold together: large ones wait for each other, small ones never do.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const UNIT_BYTES: usize = 1024;
/// Messages up to this size need no leave.
const FREE_BYTES: usize = 64 * 1024;

/// A share of memory for reading messages.
#[derive(Clone)]
pub struct Budget {
    units: Arc<Semaphore>,
    most: usize,
}

/// A part of the budget; it returns when this is dropped.
pub struct Share(#[allow(dead_code, reason = "held for its drop")] Option<OwnedSemaphorePermit>);

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        let most = (bytes / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        Budget { units: Arc::new(Semaphore::new(most)), most }
    }

    /// Waits until a message of this size may be read.
    pub async fn take(&self, bytes: usize) -> Share {
        if bytes <= FREE_BYTES {
            return Share(None);
        }
        let units = bytes.div_ceil(UNIT_BYTES).min(self.most);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        // The semaphore is never closed, so this fails never.
        Share(self.units.clone().acquire_many_owned(units).await.ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn large_messages_wait_for_each_other_and_small_ones_do_not() {
        let budget = Budget::new(1 << 20);
        let first = budget.take(1 << 20).await;
        let second = budget.take(1 << 20);
        tokio::pin!(second);
        assert!(tokio::time::timeout(Duration::from_millis(10), &mut second).await.is_err());
        let _small = budget.take(FREE_BYTES).await;
        drop(first);
        let _second = second.await;
    }

    #[tokio::test]
    async fn a_message_larger_than_the_budget_takes_all_of_it() {
        let budget = Budget::new(1 << 20);
        let _share = budget.take(1 << 30).await;
    }
}
