//! Queries, on threads where they may block: only so many at a time, others wait for their turn.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::store::StoreError;

/// Places for queries. Clones share them.
#[derive(Debug, Clone)]
pub struct Queries {
    places: Arc<Semaphore>,
    /// Of them those that long queries may take.
    for_long: Arc<Semaphore>,
}

impl Queries {
    /// Places for so many, of which long ones leave one to others, if there are two.
    pub fn at_most(most: usize) -> Queries {
        let places = |number| Arc::new(Semaphore::new(number));
        Queries { places: places(most), for_long: places(most.saturating_sub(1).max(1)) }
    }

    /// How many could run now, beside those that do.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.places.available_permits()
    }

    /// Runs a query once there is a place for it.
    ///
    /// # Errors
    /// When the query fails, or does not come to its end.
    pub async fn run<T: Send + 'static>(
        &self,
        query: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = self.places.clone().acquire_owned().await;
        let work = tokio::task::spawn_blocking(move || {
            let _place = place;
            query()
        });
        match work.await {
            Ok(answer) => answer,
            Err(error) => Err(StoreError::Engine(format!("a query ended early: {error}"))),
        }
    }

    /// The same for a query that reads many traces, all there is, or all of a window of time, which may take seconds.
    ///
    /// # Errors
    /// As [`Queries::run`].
    pub async fn run_long<T: Send + 'static>(
        &self,
        query: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let long = self.for_long.clone().acquire_owned().await;
        self.run(move || {
            let _long = long;
            query()
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc::channel;
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn a_query_waits_while_as_many_run_as_are_allowed() {
        let queries = Queries::at_most(2);
        let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let running = [1, 2].map(|number| {
            let (queries, begin, (release, released)) = (queries.clone(), begin.clone(), channel::<()>());
            let query = move || {
                begin.send(number).unwrap();
                let _is_released = released.recv();
                Ok(number)
            };
            (release, tokio::spawn(async move { queries.run(query).await }))
        });
        let mut both = [begun.recv().await, begun.recv().await];
        both.sort_unstable();
        assert_eq!(both, [Some(1), Some(2)]);
        let third = queries.clone();
        let mut third = pin!(third.run(move || {
            begin.send(3).unwrap();
            Ok(3)
        }));
        assert!(third.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(queries.free(), 0, "it waits for a place, not for its end");
        let [(first, first_done), (_second, _)] = running;
        drop(first);
        assert_eq!(first_done.await.unwrap().unwrap(), 1);
        assert_eq!(third.await.unwrap(), 3);
        assert_eq!(begun.recv().await, Some(3));
    }

    #[tokio::test]
    async fn long_queries_leave_a_place_to_others() {
        let queries = Queries::at_most(2);
        let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let (release, released) = channel::<()>();
        let long = queries.clone();
        let first = tokio::spawn(async move {
            let query = move || {
                begin.send(()).unwrap();
                let _is_released = released.recv();
                Ok(1)
            };
            long.run_long(query).await
        });
        assert_eq!(begun.recv().await, Some(()));
        let second = queries.clone();
        let mut second = pin!(second.run_long(|| Ok(2)));
        assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(queries.free(), 1, "it does not wait in a place");
        assert_eq!(queries.run(|| Ok(3)).await.unwrap(), 3);
        drop(release);
        assert_eq!((first.await.unwrap().unwrap(), second.await.unwrap()), (1, 2));
        assert_eq!(Queries::at_most(1).run_long(|| Ok(4)).await.unwrap(), 4, "a single place is for all");
    }

    #[tokio::test]
    async fn a_query_that_trips_is_an_error_and_leaves_its_place() {
        let queries = Queries::at_most(1);
        let tripped = queries.run(|| -> Result<(), StoreError> { panic!("a test's query") }).await;
        assert!(matches!(tripped, Err(StoreError::Engine(reason)) if reason.contains("ended early")));
        assert_eq!(queries.run(|| Ok(1)).await.unwrap(), 1);
    }
}
