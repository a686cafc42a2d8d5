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
//! - A view shows what arrived, each piece of a span as it came: neither whether it is stored nor what comes later.

pub mod hub;
pub mod route;
pub mod viewer;

pub use hub::{Arrival, Figures, Hub, Options};
pub use route::router;
