//! Live streams of arriving spans: `GET /api/blkin/live`, as server-sent events.
//!
//! ```text
//!  ingestion ──offer──▶ queue ──▶ one thread: spans of an arrival, ──▶ a queue for each viewer ──▶ its connection
//!  (never waits)                  matched with every viewer's filter
//! ```
//!
//! | step | module |
//! |---|---|
//! | arrivals are queued, and matched by a thread of the hub's own | [`hub`] |
//! | events that wait for one viewer, or that it missed | [`viewer`] |
//! | the HTTP route: filters in, events out | [`route`] |
//!
//! - **Without viewers there is no work**: ingestion asks [`Hub::is_watched`], which costs one load, before it copies
//!   anything.
//! - **Ingestion never waits for a viewer**: both queues are bounded in bytes. Spans for which a queue has no room are left
//!   out of the view only. They are counted, and the viewer is told at that place of the stream.
//! - **A view shows what arrived, not what is stored**: each piece of a span is shown as soon as it was received, before it is
//!   on disk. Nearly all pieces are stored a moment later. A piece that is not, because the disk refuses it or the process is
//!   killed, was never acknowledged: its sender sends it again, and it is shown again. [`hub::Figures::unkept`] counts those
//!   that are known. Repeated pieces, which the store counts as duplicates, are shown as often as they come.

pub mod hub;
pub mod route;
pub mod viewer;

pub use hub::{Arrival, Figures, Hub, Options, Shown, UNITS};
pub use route::router;
