//! Limits how many copies of rings are in memory at a time, so that no user keeps another user, or those who reach all programs,
//! waiting.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::peer::Reach;

/// Most copies of a program's rings in memory for ordinary users together, however slowly they are taken; one for each user.
pub(super) const AT_ONCE: usize = 3;
/// Most copies in memory for those who reach all programs, whom no user can keep waiting.
const FOR_ALL: usize = 1;

/// The places for copies of rings.
pub(super) struct Copies {
    of_all: Arc<Semaphore>,
    of_others: Arc<Semaphore>,
    by_uid: HashMap<u32, Arc<Semaphore>>,
}

/// The semaphores of which a client needs a place each, in this order, before it gets a copy.
pub(super) type Places = Vec<Arc<Semaphore>>;

impl Default for Copies {
    fn default() -> Self {
        Self {
            of_all: Arc::new(Semaphore::new(FOR_ALL)),
            of_others: Arc::new(Semaphore::new(AT_ONCE)),
            by_uid: HashMap::new(),
        }
    }
}

impl Copies {
    /// The places that a client with this reach needs.
    pub(super) fn of(&mut self, reach: Reach) -> Places {
        let Reach::Own(uid) = reach else { return vec![self.of_all.clone()] };
        // Forgets users without a client: each client holds its user's semaphore.
        self.by_uid.retain(|_, own| Arc::strong_count(own) > 1);
        let own = self.by_uid.entry(uid).or_insert_with(|| Arc::new(Semaphore::new(1)));
        vec![own.clone(), self.of_others.clone()]
    }
}

/// Waits for a place in each of the semaphores.
pub(super) async fn take(places: &Places) -> io::Result<Vec<OwnedSemaphorePermit>> {
    let mut taken = Vec::new();
    for of in places {
        taken.push(of.clone().acquire_owned().await.map_err(io::Error::other)?);
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_user_cannot_take_the_copy_places_of_others() {
        let mut copies = Copies::default();
        let is_free = async |of: Places| timeout(Duration::ZERO, take(&of)).await.ok().map(Result::unwrap);
        let mut taken = Vec::new();
        for uid in 0..AT_ONCE as u32 {
            taken.push(is_free(copies.of(Reach::Own(1000 + uid))).await.expect("each user gets a place"));
            assert!(
                is_free(copies.of(Reach::Own(1000 + uid))).await.is_none(),
                "user {uid} got a second place"
            );
        }
        assert!(is_free(copies.of(Reach::Own(2000))).await.is_none());
        let of_all = is_free(copies.of(Reach::All)).await;
        assert!(of_all.is_some());
        drop(taken);
        assert!(is_free(copies.of(Reach::Own(2000))).await.is_some());
        assert_eq!(copies.by_uid.len(), 1, "places of users without clients are forgotten");
    }
}
