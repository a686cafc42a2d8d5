//! The memory that messages being read may hold together. A message takes it in steps as its bytes arrive, never for its
//! announced length, and small messages need none.
//!
//! Incomplete messages must not wait for each other for ever. A message that finds no room in the common part may enter the lane:
//! one at a time, with as much memory kept apart as the largest message needs. So one message can always be completed. While
//! others wait, a sender that holds memory and sends too slowly is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blkin_daemon::CancellationToken;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until};

const UNIT_BYTES: usize = 1024;
/// The first bytes of each message, which do not count.
const FREE_BYTES: usize = 64 * 1024;
/// While others wait, this many bytes of a message that holds memory must arrive within [`PACE_TIME`].
const PACE_BYTES: usize = 256 * 1024;
const PACE_TIME: Duration = Duration::from_secs(1);

/// The memory for messages being read.
#[derive(Clone)]
pub struct Budget(Arc<Pool>);

struct Pool {
    common: Arc<Semaphore>,
    common_units: usize,
    lane: Arc<Semaphore>,
    waiting: watch::Sender<u64>,
    dropped: AtomicU64,
    closed: CancellationToken,
}

/// Why a message is read no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It arrived too slowly.
    #[error("a frame arrived at less than {} KiB a second while others waited for memory", PACE_BYTES / 1024)]
    Slow,
    /// It arrived too slowly, or found no memory, when the budget was closed.
    #[error("the server is stopping")]
    Stopping,
}

impl Budget {
    /// A budget of `bytes`, of which one message needs at most `largest`.
    pub fn new(bytes: usize, largest: usize) -> Self {
        let common_units = bytes.saturating_sub(largest) / UNIT_BYTES;
        Budget(Arc::new(Pool {
            common: Arc::new(Semaphore::new(common_units)),
            common_units,
            lane: Arc::new(Semaphore::new(1)),
            waiting: watch::Sender::new(0),
            dropped: AtomicU64::new(0),
            closed: CancellationToken::new(),
        }))
    }

    /// The share of a message before its first byte.
    pub fn share(&self) -> Share {
        Share {
            pool: self.0.clone(),
            granted: FREE_BYTES,
            common: None,
            lane: None,
            paced: 0,
            due: Instant::now() + PACE_TIME,
        }
    }

    /// Messages that are waiting for memory.
    pub fn waiting(&self) -> u64 {
        *self.0.waiting.borrow()
    }

    /// Messages dropped because they arrived too slowly while others waited.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// From now on, no message waits for memory, and messages that arrive too slowly are not waited for.
    pub fn close(&self) {
        self.0.closed.cancel();
        self.0.lane.close();
    }
}

/// The memory that one message holds; dropping it returns the memory.
pub struct Share {
    pool: Arc<Pool>,
    granted: usize,
    common: Option<OwnedSemaphorePermit>,
    lane: Option<OwnedSemaphorePermit>,
    /// How long the message was when `due` was set.
    paced: usize,
    due: Instant,
}

impl Share {
    /// Waits until the message may hold `bytes` in all. Returns how many it may hold, which is usually more, so that it asks
    /// rarely.
    ///
    /// # Errors
    /// When the wait was ended.
    pub async fn grow(&mut self, bytes: usize) -> Result<usize, Denied> {
        if bytes >= self.paced.saturating_add(PACE_BYTES) {
            self.set_pace(bytes);
        }
        if bytes > self.granted {
            let granted = bytes.checked_next_power_of_two().unwrap_or(bytes);
            if self.lane.is_none() {
                self.take((granted - self.granted).div_ceil(UNIT_BYTES)).await?;
                self.set_pace(bytes);
            }
            self.granted = granted;
        }
        Ok(self.granted)
    }

    /// Waits for the next bytes of the message.
    ///
    /// # Errors
    /// When they take too long while others wait for memory and this message holds some, or once the budget is closed.
    pub async fn hurry<T>(&self, coming: impl Future<Output = T>) -> Result<T, Denied> {
        tokio::select! {
            biased;
            came = coming => Ok(came),
            denied = self.overdue() => Err(denied),
        }
    }

    fn set_pace(&mut self, bytes: usize) {
        self.paced = bytes;
        self.due = Instant::now() + PACE_TIME;
    }

    async fn take(&mut self, units: usize) -> Result<(), Denied> {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let common = self.pool.common.clone();
        if let Ok(permit) = common.clone().try_acquire_many_owned(units) {
            self.hold(permit);
            return Ok(());
        }
        let _waiting = Waiting::among(&self.pool.waiting);
        // Waiting for more than there is would only hoard what others could use.
        let can_come = units as usize <= self.pool.common_units;
        tokio::select! {
            Ok(permit) = common.acquire_many_owned(units), if can_come => self.hold(permit),
            lane = self.pool.lane.clone().acquire_owned() => {
                self.lane = Some(lane.map_err(|_closed| Denied::Stopping)?);
            }
        }
        Ok(())
    }

    fn hold(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.common {
            Some(held) => held.merge(permit),
            None => self.common = Some(permit),
        }
    }

    async fn overdue(&self) -> Denied {
        sleep_until(self.due).await;
        let mut waiting = self.pool.waiting.subscribe();
        tokio::select! {
            () = self.pool.closed.cancelled() => Denied::Stopping,
            // The sender lives as long as the share.
            _ = waiting.wait_for(|waiting| *waiting > 0), if self.common.is_some() || self.lane.is_some() => {
                self.pool.dropped.fetch_add(1, Ordering::Relaxed);
                Denied::Slow
            }
        }
    }
}

/// Counts a waiting message as long as it lives.
struct Waiting(watch::Sender<u64>);

impl Waiting {
    fn among(waiting: &watch::Sender<u64>) -> Self {
        waiting.send_modify(|count| *count += 1);
        Waiting(waiting.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::sync::atomic::AtomicUsize;

    use tokio::task::JoinSet;

    const MIB: usize = 1 << 20;

    /// A message that holds `bytes`.
    async fn held(budget: &Budget, bytes: usize) -> Share {
        let mut share = budget.share();
        share.grow(bytes).await.unwrap();
        share
    }

    #[tokio::test(start_paused = true)]
    async fn small_messages_take_nothing_from_the_budget() {
        let budget = Budget::new(3 * MIB - 2 * FREE_BYTES, MIB);
        let mut shares = Vec::new();
        for _ in 0..1000 {
            shares.push(held(&budget, FREE_BYTES).await);
        }
        let _large = (held(&budget, MIB).await, held(&budget, MIB).await);
        assert_eq!(
            budget.0.lane.available_permits(),
            1,
            "both large messages fit into the common part, without their free bytes"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn message_is_granted_more_than_it_asks_for() {
        let mut share = Budget::new(2 * MIB, MIB).share();
        for (bytes, granted) in [(1, 1), (FREE_BYTES + 1, 2 * FREE_BYTES), (MIB / 2 + 1, MIB)] {
            let granted = granted.max(FREE_BYTES);
            assert_eq!([share.grow(bytes).await, share.grow(granted).await], [Ok(granted); 2]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn memory_taken_in_steps_is_held_until_the_message_ends() {
        let budget = Budget::new(3 * MIB - FREE_BYTES, MIB);
        let common = &budget.0.common;
        let mut share = held(&budget, MIB / 2).await;
        share.grow(2 * MIB).await.unwrap();
        assert_eq!(common.available_permits(), 0);
        drop(share);
        assert_eq!(common.available_permits() * UNIT_BYTES, 2 * MIB - FREE_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn request_beyond_the_common_part_does_not_block_others() {
        let budget = Budget::new(MIB + MIB / 2, MIB);
        let in_lane = held(&budget, MIB).await;
        let mut large = budget.share();
        let large = large.grow(MIB);
        tokio::pin!(large);
        assert!(tokio::time::timeout(Duration::ZERO, &mut large).await.is_err());
        let other = tokio::time::timeout(Duration::ZERO, held(&budget, MIB / 2)).await;
        assert!(other.is_ok(), "the common part has room for the smaller message");
        drop(in_lane);
        large.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn partial_messages_complete_in_turn_within_the_budget() {
        const TOTAL: usize = 4 * MIB;
        let (budget, all) = (Budget::new(TOTAL, MIB), Arc::new(AtomicUsize::new(0)));
        let mut messages = JoinSet::new();
        for _ in 0..50 {
            let (mut share, all) = (budget.share(), all.clone());
            messages.spawn(async move {
                let mut bytes = 0;
                while bytes < MIB {
                    let granted = share.grow(bytes + 1).await.unwrap().min(MIB);
                    let now = all.fetch_add(granted - bytes, Ordering::Relaxed) + granted - bytes;
                    assert!(now <= TOTAL + 50 * FREE_BYTES, "{now} bytes are held");
                    bytes = granted;
                    tokio::task::yield_now().await;
                }
                all.fetch_sub(bytes, Ordering::Relaxed);
            });
        }
        let began = Instant::now();
        messages.join_all().await;
        assert_eq!((began.elapsed(), budget.waiting(), budget.dropped()), (Duration::ZERO, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_holder_of_memory_is_dropped_once_others_wait() {
        let budget = Budget::new(MIB, MIB);
        let silent = held(&budget, MIB).await;
        let day = Duration::from_secs(86_400);
        assert!(
            tokio::time::timeout(day, silent.hurry(pending::<()>())).await.is_err(),
            "a silent holder was dropped while nobody waits"
        );
        let (began, waiting) = (
            Instant::now(),
            tokio::spawn({
                let budget = budget.clone();
                async move { held(&budget, MIB).await }
            }),
        );
        assert_eq!(silent.hurry(pending::<()>()).await, Err(Denied::Slow));
        assert_eq!((began.elapsed(), budget.waiting(), budget.dropped()), (Duration::ZERO, 1, 1));
        drop(silent);
        let _next = waiting.await.unwrap();
        assert_eq!(budget.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn fast_enough_sender_is_not_dropped_while_others_wait() {
        let budget = Budget::new(64 * MIB, 64 * MIB);
        let mut share = held(&budget, MIB).await;
        let mut other = budget.share();
        let other = other.grow(MIB);
        tokio::pin!(other);
        assert!(tokio::time::timeout(Duration::ZERO, &mut other).await.is_err());
        for bytes in (MIB..64 * MIB).step_by(PACE_BYTES) {
            share.grow(bytes).await.unwrap();
            share.hurry(tokio::time::sleep(PACE_TIME - Duration::from_millis(1))).await.unwrap();
        }
        drop(share);
        other.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_memory_does_not_count_as_slow_sending() {
        let budget = Budget::new(2 * MIB - FREE_BYTES, MIB);
        let (in_common, _in_lane) = (held(&budget, MIB).await, held(&budget, 2 * MIB).await);
        let [mut share, mut other] = [budget.share(), budget.share()];
        {
            let growth = share.grow(MIB);
            tokio::pin!(growth);
            assert!(tokio::time::timeout(10 * PACE_TIME, &mut growth).await.is_err());
            drop(in_common);
            growth.await.unwrap();
        }
        let other = other.grow(MIB);
        tokio::pin!(other);
        assert!(tokio::time::timeout(Duration::ZERO, &mut other).await.is_err());
        let began = Instant::now();
        let slow = tokio::time::timeout(2 * PACE_TIME, share.hurry(pending::<()>())).await;
        assert_eq!((slow, began.elapsed()), (Ok(Err(Denied::Slow)), PACE_TIME));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_message_without_memory_is_not_dropped() {
        let budget = Budget::new(MIB, MIB);
        let (_in_lane, small) = (held(&budget, MIB).await, held(&budget, FREE_BYTES).await);
        let mut other = budget.share();
        let other = other.grow(MIB);
        tokio::pin!(other);
        assert!(tokio::time::timeout(Duration::ZERO, &mut other).await.is_err());
        let day = Duration::from_secs(86_400);
        assert!(tokio::time::timeout(day, small.hurry(pending::<()>())).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn trickling_bytes_do_not_save_a_slow_sender() {
        for step in [1, (PACE_BYTES - 1) / 10] {
            let budget = Budget::new(MIB, MIB);
            let mut share = held(&budget, MIB / 2).await;
            let mut other = budget.share();
            let other = other.grow(MIB);
            tokio::pin!(other);
            assert!(tokio::time::timeout(Duration::ZERO, &mut other).await.is_err());
            let began = Instant::now();
            for bytes in (MIB / 2..).step_by(step).take(20) {
                share.grow(bytes).await.unwrap();
                if share.hurry(tokio::time::sleep(PACE_TIME / 10)).await.is_err() {
                    break;
                }
            }
            assert_eq!(began.elapsed(), PACE_TIME, "{step} bytes each time");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn closed_budget_denies_memory_without_waiting() {
        let budget = Budget::new(2 * MIB, MIB);
        let _held = (held(&budget, MIB).await, held(&budget, 2 * MIB).await);
        let waiting = tokio::spawn({
            let mut share = budget.share();
            async move { share.grow(MIB).await }
        });
        budget.0.waiting.subscribe().wait_for(|waiting| *waiting == 1).await.unwrap();
        budget.close();
        assert_eq!(waiting.await.unwrap(), Err(Denied::Stopping));
        assert_eq!(budget.share().grow(MIB).await, Err(Denied::Stopping));
        assert!(budget.share().grow(FREE_BYTES).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_sender_is_stopped_once_the_budget_is_closed() {
        let budget = Budget::new(2 * MIB, MIB);
        let (share, began) = (budget.share(), Instant::now());
        budget.close();
        assert_eq!(share.hurry(tokio::time::sleep(PACE_TIME / 2)).await, Ok(()));
        assert_eq!(share.hurry(pending::<()>()).await, Err(Denied::Stopping));
        assert_eq!((began.elapsed(), budget.dropped()), (PACE_TIME, 0));
    }
}
