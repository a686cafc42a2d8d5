//! Arriving spans, shown to whoever watches: `GET /api/blkin/live`, a stream of server-sent events.
//!
//! ```text
//!  ingestion ──offer──▶ queue ──▶ one thread: spans of an arrival, ──▶ a queue for each viewer ──▶ its connection
//!  (never waits)                  matched with every viewer's filter
//! ```
//!
//! | step | module |
//! |---|---|
//! | arrivals are offered, and looked at by a thread of their own | [`hub`] |
//! | what one viewer has yet to get, or has missed | [`viewer`] |
//! | filters in, events out | [`route`] |
//!
//! - **Nothing is done when nobody watches**: whoever takes spans in asks [`Hub::is_watched`], one load, before it copies
//!   anything.
//! - **Nobody waits for a viewer**: both queues are bounded in bytes. What finds one full is left out of the view alone, is
//!   counted, and the viewer is told at that place of the stream.
//! - **A view shows what arrived, not what is stored**: each piece of a span as it came, as soon as it was taken from its
//!   sender and before it is on disk, for that is what makes it soon. Nearly all of it is stored a moment later. What is not,
//!   because the disk refuses or the process is killed, was never acknowledged: its sender sends it again, and it is shown
//!   again. [`hub::Figures::unkept`] counts what is known of that. Repetitions, which the store counts as duplicates, are
//!   shown as often as they come.

pub mod hub;
pub mod route;
pub mod viewer;

pub use hub::{Arrival, Figures, Hub, Options, Shown};
pub use route::router;
