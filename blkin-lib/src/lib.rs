//! Request tracing for storage daemons: annotations of spans, written for about the price of reading the clock.
//!
//! A request is a *trace*. Each step of it is a *span* with a parent; programs annotate spans with *events* and with
//! *keys and values*. Annotations go through rings in shared memory to `blkin-consumerd`, which runs on each node,
//! joins them and ships them. If anything is wrong with tracing the program goes on untraced, and says so once.
//!
//! ```
//! use blkin::{Context, Endpoint, Span};
//!
//! const GATEWAY: Endpoint = Endpoint::new("gateway").at("10.0.0.7", 7000);
//! const JOURNAL: Endpoint = Endpoint::new("journal");
//! const OSD: Endpoint = Endpoint::new("osd.0").at("10.0.0.8", 6800);
//!
//! let request = Span::root("write", &GATEWAY);
//! request.server_receive();
//! request.tag("Object", "rbd_data.1");
//! {
//!     let access = request.child("Journal access", &JOURNAL);
//!     access.event("begin");
//!     access.tag("bytes", 4096);
//!     access.end();
//! }
//! let call = request.child("replicate", &GATEWAY);
//! let on_the_wire: [u8; 24] = call.context().to_bytes();
//! call.client_send();
//! {
//!     // In the process that it is sent to: the same span, into which both sides write.
//!     let served = Span::join("replicate", &OSD, Context::from_bytes(&on_the_wire)?);
//!     served.server_receive();
//!     served.server_send();
//! }
//! call.client_receive();
//! request.server_send();
//! # Ok::<(), blkin::BadContext>(())
//! ```
//!
//! A context of a request that is not sampled goes over the wire like any other, and what is joined to it records nothing: only
//! what came without one begins a trace.
//!
//! A span is a small value that borrows its name and endpoint: it can be sent, copied into futures and kept in request
//! structs. There is no current span behind the scenes, and nothing is recorded when a span is dropped: it leaves the
//! node once [`Span::client_receive`], [`Span::server_send`] or [`Span::end`] closes it, and one that nothing closes ten
//! seconds after its last annotation. Annotations that come later still become part of it. One that is to be closed
//! however its scope is left is made by [`Span::begin`], [`Span::serve`] or [`Span::call`]: an [`Open`].
//!
//! In code that runs for every IO use [`event!`] and [`tag!`], whose literals are looked up once, or a static [`Name`].
//!
//! What a name or an endpoint is made of has to live as long as the spans. For names from a configuration that is the whole
//! program: `Endpoint::new(String::leak(name))`, once.
//!
//! `blkin trace` draws a request by its id, which `format!("{:016x}", span.context().trace_id())` writes as it is shown there.
//!
//! Names, events, keys and values are any text of up to 4 KiB; longer ones are cut at a character boundary, and counted. The
//! collector shows names of spans and services in lower case, as Zipkin does.
//!
//! Recording makes no system call, takes no lock and allocates nothing in the steady state, may be done in signal
//! handlers, and keeps errno. A forked child records on its own without any help. Stacks of 16 KiB are enough, where
//! dependencies are optimised: by `[profile.dev.package."*"] opt-level = 1` in cargo's `dev` profile, where it takes 32 KiB without,
//! and in a signal handler what the kernel saves on its stack besides.
//!
//! The crate's feature `c` adds the C interface (`blkin/zipkin_c.h`) for parts of the program that are in C, which then record
//! into the same rings. Without it nothing of the crate can be seen from outside: a plug-in records beside a host that has
//! `libblkin.so`, and neither knows of the other.
//!
//! Variables are read when the program starts, and by an [`init`] that comes before the first record, which no thread may
//! call while another changes the environment. One that is empty counts as not set, one that is gone by
//! then as it was at the start.
//!
//! | variable | meaning |
//! |---|---|
//! | `BLKIN_OFF` | any value but `0`: record nothing |
//! | `BLKIN_RATE`, `RATE` | trace one of every N requests |
//! | `BLKIN_SOCKET` | where consumerd listens (`/run/blkin/consumerd.sock`) |
//! | `BLKIN_RING_BYTES` | size of each ring, a power of two (1 MiB; less on more than 15 CPUs) |
//! | `BLKIN_MODE` | `overwrite`: a flight recorder, which keeps the latest and is read by `blkin snapshot` |
//! | `BLKIN_PRODUCER` | `portable` or `rseq`: how rings are written; chosen by itself |
//! | `BLKIN_STRINGS` | `bytes`: read texts byte by byte, for a memory checker (the default under valgrind), or `blocks`: by 16 bytes, which may read up to 15 behind an end, though never in another page (the default on x86-64) |
//! | `BLKIN_WAKE` | `0`: never wake consumerd, the one system call that a record may make |

#[allow(unsafe_code, reason = "C callers hand over raw pointers; the folder states what it asks of them")]
#[cfg(any(test, feature = "c"))]
mod capi;
mod context;
mod endpoint;
mod name;
mod open;
mod raw;
mod span;

pub use context::{BadContext, Context};
pub use endpoint::Endpoint;
pub use name::{Key, Name};
pub use open::Open;
pub use raw::init;
pub use span::{Level, Span, Value};

pub use blkin_ringbuf::process::Status;
