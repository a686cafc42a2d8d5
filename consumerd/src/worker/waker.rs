//! Lets programs wake the worker when they have filled three eighths of a ring.
//!
//! One thread waits on a word in the control page of each of up to 127 programs ([`blkin_ringbuf::wake`]), and tells the worker
//! through an eventfd. A word says whether the worker sleeps. The thread keeps waiting while the worker is awake: then the words
//! are 0, and no program wakes it. While rings fill so slowly that the pauses are long ([`super::pace`]), the words stay 1 from
//! look to look. After the first program's wake the thread itself clears all words: the worker may be busy for long, and a program
//! whose ring is full would call until the worker rises. So an idle worker that looks at the rings now and then, or a busy worker
//! with short pauses, never switches to that thread; only a program that comes, goes or wakes the worker does. If there are more
//! programs, the thread waits for the most recently active ones. The others, and all programs on a kernel without the call, are
//! only polled, and then the pause is short while there is something.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blkin_daemon::{Heartbeat, threads};
use blkin_ringbuf::ControlPage;
use blkin_ringbuf::wake::{MAX_PROGRAMS, Waiter, Woken, is_supported};
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::unix::AsyncFd;

use crate::link::{wait_and_reset, watch};
use crate::settings::Settings;

/// How often programs woke the worker.
pub(super) type Wakes = Arc<AtomicU64>;

/// The worker's side.
pub(super) struct Waker {
    thread: Option<Arc<Thread>>,
    event: AsyncFd<OwnedFd>,
    activity: Activity,
    /// The value of [`Settings::changes`] for which the watched programs were chosen.
    changes: Option<u64>,
    wakes: Wakes,
}

/// What the thread shares with the worker.
struct Thread {
    waiter: Waiter,
    watched: Mutex<Watched>,
    event: OwnedFd,
    wakes: Wakes,
}

#[derive(Default)]
struct Watched {
    pages: Vec<ControlPage>,
    /// The thread waits for these pages' programs, or is about to.
    is_watched: bool,
    /// The pages say that the worker sleeps.
    is_asleep: bool,
    /// The worker was told of a program that woke it, and has not risen since.
    has_told: bool,
    /// The kernel refused to wait: the thread has ended.
    has_failed: bool,
}

impl Waker {
    /// Starts the thread, if the kernel supports it. The thread beats when it has something to do, and rests in between.
    ///
    /// # Errors
    /// When the thread cannot be started, or no file descriptor is left.
    pub(super) fn start(heartbeat: Heartbeat) -> io::Result<Self> {
        let own_event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wakes = Wakes::default();
        let thread = if is_supported() {
            let thread = Arc::new(Thread::new(own_event.try_clone()?, wakes.clone()));
            let waiting = thread.clone();
            threads::start("blkin-wake", move || waiting.run(heartbeat))?;
            Some(thread)
        } else {
            heartbeat.finish();
            tracing::info!(
                "this kernel cannot wait for many programs at once (futex_waitv): rings are polled on a timer alone"
            );
            None
        };
        let event = watch(own_event)?;
        Ok(Self { thread, event, activity: Activity::default(), changes: None, wakes })
    }

    /// Whether all programs can wake the worker if there are so many.
    pub(super) fn is_woken_by_all(&self, programs: usize) -> bool {
        let thread = self.thread.as_ref().filter(|_| programs <= MAX_PROGRAMS);
        thread.is_some_and(|thread| !thread.watched().has_failed)
    }

    /// How often programs woke the worker, now and later.
    pub(super) fn wakes(&self) -> Wakes {
        self.wakes.clone()
    }

    /// Asks programs to wake the worker. Returns whether they had not been asked before: what they wrote until now wakes nobody,
    /// so the rings need one more look. `drained` returns how many records of each program were drained so far.
    pub(super) fn sleep(&mut self, settings: &Settings, drained: impl FnOnce() -> Vec<(u64, u64)>) -> bool {
        let Some(thread) = &self.thread else { return false };
        let changes = Some(settings.changes());
        let mut watched = thread.watched();
        let was_asked = watched.is_asleep && self.changes == changes;
        if (was_asked && watched.is_watched) || watched.has_failed {
            return false;
        }
        if self.changes != changes || !watched.is_watched {
            watched.say_asleep(false);
            watched.pages = self.activity.last_active(settings.pages(), drained);
            watched.is_watched = true;
            watched.say_asleep(true);
            thread.waiter.call();
        } else {
            watched.say_asleep(true);
        }
        self.changes = changes;
        !was_asked
    }

    /// Stops asking programs, and discards a wake that has come meanwhile: the worker reads that program's records anyway, and
    /// would later take the wake for one in vain.
    pub(super) fn rise(&mut self) {
        let Some(thread) = &self.thread else { return };
        let mut watched = thread.watched();
        if watched.is_asleep {
            watched.say_asleep(false);
        }
        // From here on the thread does not signal the worker any more.
        if std::mem::replace(&mut watched.has_told, false) {
            let _ = rustix::io::read(self.event.get_ref(), &mut [0; 8]);
        }
    }

    /// Returns when a program has woken the worker.
    ///
    /// # Errors
    /// Any error of the system.
    pub(super) async fn woken(&self) -> io::Result<()> {
        wait_and_reset(&self.event).await
    }
}

impl Watched {
    fn say_asleep(&mut self, is_asleep: bool) {
        self.is_asleep = is_asleep;
        self.pages.iter().for_each(|page| page.set_sleeping(is_asleep));
    }

    /// Leaves out programs that have changed their word themselves, so that they do not keep all others from waking the worker.
    fn leave_out_unruly(&mut self) {
        let before = self.pages.len();
        if self.is_asleep {
            self.pages.retain(ControlPage::is_sleeping);
        }
        // If there are none, the worker rose before the thread had begun to wait, or a program has restored its word. After its
        // next look the worker asks all programs again, if it sleeps then.
        self.is_watched = self.pages.len() < before;
    }
}

impl Thread {
    fn new(event: OwnedFd, wakes: Wakes) -> Self {
        Self { waiter: Waiter::default(), watched: Mutex::default(), event, wakes }
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, heartbeat: Heartbeat) {
        loop {
            let ticket = self.waiter.ticket();
            let pages = {
                let watched = self.watched();
                if watched.is_watched { watched.pages.clone() } else { Vec::new() }
            };
            heartbeat.rest();
            let woken = self.waiter.wait(ticket, &pages);
            heartbeat.beat();
            match woken {
                Ok(Woken::Called) => {}
                Ok(Woken::NotAsleep) => self.watched().leave_out_unruly(),
                Ok(Woken::ByProgram) => self.wake(),
                Err(e) => {
                    tracing::warn!("failed to wait for programs; rings are polled on a timer alone: {e}");
                    self.fail();
                    return heartbeat.finish();
                }
            }
        }
    }

    fn fail(&self) {
        let mut watched = self.watched();
        watched.say_asleep(false);
        watched.has_failed = true;
    }

    fn wake(&self) {
        let mut watched = self.watched();
        watched.is_watched = false;
        // The worker may have risen by itself meanwhile.
        if watched.is_asleep {
            watched.say_asleep(false);
            watched.has_told = true;
            self.wakes.fetch_add(1, Relaxed);
            // Fails only when 2^64 wakes are unread.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }
}

/// Which programs were active most recently.
#[derive(Debug, Default)]
struct Activity {
    /// For each program, how many records were drained, and at which look that number last grew.
    last: HashMap<u64, (u64, u64)>,
    now: u64,
}

impl Activity {
    fn last_active(
        &mut self,
        mut pages: Vec<(u64, ControlPage)>,
        drained: impl FnOnce() -> Vec<(u64, u64)>,
    ) -> Vec<ControlPage> {
        if pages.len() > MAX_PROGRAMS {
            self.note(&drained());
            let since = |number: &u64| self.last.get(number).map_or(0, |(_, since)| *since);
            pages.sort_by_key(|(number, _)| std::cmp::Reverse(since(number)));
            pages.truncate(MAX_PROGRAMS);
        }
        pages.into_iter().map(|(_, page)| page).collect()
    }

    fn note(&mut self, drained: &[(u64, u64)]) {
        self.now += 1;
        let now = self.now;
        let noted = drained.iter().map(|(number, drained)| {
            let before = self.last.get(number).copied().unwrap_or_default();
            (*number, if *drained == before.0 { before } else { (*drained, now) })
        });
        self.last = noted.collect();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use blkin_daemon::Health;
    use blkin_daemon::health::State;

    fn page() -> ControlPage {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let memfd = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memfd, blkin_ringbuf::layout::CONTROL_BYTES as u64).unwrap();
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        ControlPage::open(&memfd).unwrap()
    }

    /// Otherwise the worker would believe that it had been woken in vain, and ask no program for a quarter of a second.
    #[tokio::test]
    async fn an_unneeded_wakeup_is_not_seen_later() {
        let mut waker = Waker::start(Health::new().worker("wake")).unwrap();
        let thread = waker.thread.clone().expect("this kernel can wait for many programs");
        let fall_asleep = || {
            let mut watched = thread.watched();
            *watched = Watched { pages: vec![page()], is_watched: true, ..Watched::default() };
            watched.say_asleep(true);
        };
        fall_asleep();
        thread.wake();
        waker.woken().await.unwrap();
        waker.rise();
        fall_asleep();
        thread.wake();
        waker.rise();
        assert_eq!(rustix::io::read(waker.event.get_ref(), &mut [0; 8]), Err(rustix::io::Errno::AGAIN));
        assert_eq!(waker.wakes().load(Relaxed), 2);
    }

    /// Otherwise all programs would call a worker that is busy with a long look, again and again.
    #[tokio::test]
    async fn one_wakeup_clears_the_request_in_all_control_pages() {
        let waker = Waker::start(Health::new().worker("wake")).unwrap();
        let thread = waker.thread.clone().expect("this kernel can wait for many programs");
        let pages = [page(), page()];
        *thread.watched() = Watched { pages: pages.to_vec(), is_watched: true, ..Watched::default() };
        thread.watched().say_asleep(true);
        thread.wake();
        assert!(pages.iter().all(|page| !page.is_sleeping()));
        thread.wake();
        assert_eq!(waker.wakes().load(Relaxed), 1);
    }

    #[test]
    fn only_a_program_that_changes_its_word_is_left_out() {
        let pages: Vec<ControlPage> = (0..3).map(|_| page()).collect();
        let mut watched = Watched { pages: pages.clone(), is_watched: true, ..Watched::default() };
        watched.say_asleep(true);
        pages[1].set_sleeping(false);
        watched.leave_out_unruly();
        assert_eq!((watched.pages.len(), watched.is_watched), (2, true));
        watched.say_asleep(false);
        watched.leave_out_unruly();
        assert_eq!((watched.pages.len(), watched.is_watched), (2, false));
    }

    /// The thread found a word that was not set, but could not tell whose a moment later: the worker had risen and fallen asleep
    /// again, or a program plays with its word.
    #[tokio::test]
    async fn an_unwatched_worker_is_watched_again_after_its_next_look() {
        let mut waker = Waker::start(Health::new().worker("wake")).unwrap();
        let thread = waker.thread.clone().expect("this kernel can wait for many programs");
        let settings = Settings::default();
        assert!(waker.sleep(&settings, Vec::new));
        thread.watched().leave_out_unruly();
        assert!(!thread.watched().is_watched);
        assert!(
            !waker.sleep(&settings, Vec::new),
            "records since the last look wake the worker: no further look is due"
        );
        assert!(thread.watched().is_watched);
    }

    #[tokio::test]
    async fn wakeups_are_not_relied_on_if_too_many_or_after_a_failure() {
        let mut waker = Waker::start(Health::new().worker("wake")).unwrap();
        let thread = waker.thread.clone().expect("this kernel can wait for many programs");
        assert!(waker.is_woken_by_all(MAX_PROGRAMS) && !waker.is_woken_by_all(MAX_PROGRAMS + 1));
        let pages = [page()];
        *thread.watched() = Watched { pages: pages.to_vec(), is_watched: true, ..Watched::default() };
        thread.watched().say_asleep(true);
        thread.fail();
        assert!(!waker.is_woken_by_all(1) && !pages[0].is_sleeping());
        assert!(!waker.sleep(&Settings::default(), Vec::new), "a failed thread would hear no program");
        waker.thread = None;
        assert!(!waker.is_woken_by_all(0));
    }

    #[tokio::test]
    async fn a_waiting_thread_is_alive_and_a_blocked_one_stuck() {
        let health = Health::new();
        let waker = Waker::start(health.worker("wake")).unwrap();
        let thread = waker.thread.expect("this kernel can wait for many programs");
        let wait_for = |wanted| {
            let began = Instant::now();
            while health.report().workers[0].state != wanted {
                assert!(began.elapsed() < Duration::from_secs(60), "the thread did not become {wanted:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let held = thread.watched();
        thread.waiter.call();
        wait_for(State::Stuck);
        drop(held);
        wait_for(State::Alive);
    }

    #[test]
    fn activity_notes_the_last_look_with_new_records() {
        let mut activity = Activity::default();
        activity.note(&[(1, 5), (2, 5), (3, 0)]);
        activity.note(&[(1, 5), (2, 6), (3, 0), (4, 1)]);
        activity.note(&[(1, 5), (2, 6), (4, 2)]);
        let since = |number| activity.last.get(&number).map(|(_, since)| *since);
        assert_eq!([since(1), since(2), since(3), since(4)], [Some(1), Some(2), None, Some(3)]);
    }
}
