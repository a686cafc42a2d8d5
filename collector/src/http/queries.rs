//! Queries run on threads that may block, and only a limited number at a time. Others wait for their turn, but not for ever.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::store::StoreError;

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// No place became free in time.
    #[error(
        "too many queries are running (`query_concurrency`), and none made room for this one within {0:?}: ask again later, \
         or for less"
    )]
    Busy(Duration),
    /// The store failed.
    #[error(transparent)]
    Failed(#[from] StoreError),
    /// The query panicked.
    #[error(
        "failed to answer because of a defect in the collector: please report it with the lines that its log has of this panic"
    )]
    Panicked,
    /// The collector is stopping.
    #[error("the collector is stopping: ask again later")]
    Stopping,
}

/// Places for queries. Clones share them.
#[derive(Debug, Clone)]
pub struct Queries {
    places: Arc<Semaphore>,
    /// How many of the places long queries may take.
    for_long: Arc<Semaphore>,
}

impl Queries {
    /// `most` places. If there are two or more, long queries leave one of them to the others.
    pub fn at_most(most: usize) -> Queries {
        let places = |number| Arc::new(Semaphore::new(number));
        Queries { places: places(most), for_long: places(most.saturating_sub(1).max(1)) }
    }

    /// How many places are free.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.places.available_permits()
    }

    /// Runs a query once there is a place for it; waits no longer than `patience` for that place.
    ///
    /// # Errors
    /// When no place becomes free in time, and when the query fails or panics.
    pub async fn run<T: Send + 'static>(
        &self,
        patience: Duration,
        query: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Unanswered> {
        let place = Wait::of(patience).place(&self.places).await?;
        ended(place, query).await
    }

    /// The same for a query that may take seconds, because it reads many traces, a whole window of time, or the whole store.
    ///
    /// # Errors
    /// As [`Queries::run`].
    pub async fn run_long<T: Send + 'static>(
        &self,
        patience: Duration,
        query: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Unanswered> {
        let wait = Wait::of(patience);
        let long = wait.place(&self.for_long).await?;
        let place = wait.place(&self.places).await?;
        ended((long, place), query).await
    }
}

/// A wait for one or more places, with one deadline for all of them.
struct Wait {
    patience: Duration,
    due: Instant,
}

impl Wait {
    fn of(patience: Duration) -> Wait {
        Wait { patience, due: Instant::now() + patience }
    }

    async fn place(&self, of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Unanswered> {
        match timeout_at(self.due, of.clone().acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            // No semaphore is ever closed.
            Ok(Err(_)) | Err(_) => Err(Unanswered::Busy(self.patience)),
        }
    }
}

/// Runs a query, which gives its places back when it ends, and returns its answer.
async fn ended<T: Send + 'static>(
    places: impl Send + 'static,
    query: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Unanswered> {
    let work = tokio::task::spawn_blocking(move || {
        let _places = places;
        query()
    });
    match work.await {
        Ok(answer) => Ok(answer?),
        Err(ended) if ended.is_panic() => Err(Unanswered::Panicked),
        Err(_cancelled) => Err(Unanswered::Stopping),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc::channel;
    use std::task::{Context, Waker};

    use axum::http::StatusCode;
    use axum::response::IntoResponse;

    use super::*;
    use crate::http::Problem;

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn a_query_waits_while_all_places_are_taken() {
        let queries = Queries::at_most(2);
        let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let running = [1, 2].map(|number| {
            let (queries, begin, (release, released)) = (queries.clone(), begin.clone(), channel::<()>());
            let query = move || {
                begin.send(number).unwrap();
                let _is_released = released.recv();
                Ok(number)
            };
            (release, tokio::spawn(async move { queries.run(LONG, query).await }))
        });
        let mut both = [begun.recv().await, begun.recv().await];
        both.sort_unstable();
        assert_eq!(both, [Some(1), Some(2)]);
        let third = queries.clone();
        let mut third = pin!(third.run(LONG, move || {
            begin.send(3).unwrap();
            Ok(3)
        }));
        assert!(third.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(queries.free(), 0, "both running queries hold their places");
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
            long.run_long(LONG, query).await
        });
        assert_eq!(begun.recv().await, Some(()));
        let second = queries.clone();
        let mut second = pin!(second.run_long(LONG, || Ok(2)));
        assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(queries.free(), 1, "a waiting long query takes no place");
        assert_eq!(queries.run(LONG, || Ok(3)).await.unwrap(), 3);
        drop(release);
        assert_eq!((first.await.unwrap().unwrap(), second.await.unwrap()), (1, 2));
        assert_eq!(
            Queries::at_most(1).run_long(LONG, || Ok(4)).await.unwrap(),
            4,
            "long queries may use a single place"
        );
    }

    #[tokio::test]
    async fn a_panicking_query_fails_and_frees_its_place() {
        let queries = Queries::at_most(1);
        let tripped = queries.run(LONG, || -> Result<(), StoreError> { panic!("a test's query") }).await;
        let tripped = tripped.unwrap_err();
        assert!(tripped.to_string().contains("a defect in the collector"), "{tripped}");
        assert_eq!(Problem::from(tripped).into_response().status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(queries.run(LONG, || Ok(1)).await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_without_a_place_in_time_is_answered_busy() {
        let queries = Queries::at_most(2);
        let taken = queries.places.clone().acquire_many_owned(2).await.unwrap();
        let patience = Duration::from_secs(10);
        let began = Instant::now();
        let busy = queries.run_long(patience, || Ok(1)).await.unwrap_err();
        assert_eq!(began.elapsed(), patience, "it waits once in all, not for each semaphore");
        assert!(busy.to_string().contains("within 10s"), "{busy}");
        assert_eq!(Problem::from(busy).into_response().status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(matches!(queries.run(patience, || Ok(1)).await, Err(Unanswered::Busy(_))));
        drop(taken);
        assert_eq!(queries.run_long(patience, || Ok(1)).await.unwrap(), 1);
        assert_eq!((queries.free(), queries.for_long.available_permits()), (2, 1));
    }
}
