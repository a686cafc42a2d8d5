//! Request tracing for storage daemons. Recording an annotation costs about as much as reading the clock.
//!
//! A request is a *trace*. Each step of it is a *span* with a parent; programs annotate spans with *events* and with
//! *keys and values*. Annotations go through rings in shared memory to `blkin-consumerd`, which runs on each node,
//! joins them into spans and sends these on. If tracing cannot start, the program runs untraced and says so once, on
//! standard error.
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
//!     // In the process that receives the call: the same span. Both sides annotate it.
//!     let served = Span::join("replicate", &OSD, Context::from_bytes(&on_the_wire)?);
//!     served.server_receive();
//!     served.server_send();
//! }
//! call.client_receive();
//! request.server_send();
//! # Ok::<(), blkin::BadContext>(())
//! ```
//!
//! Send the context with every request, also if the request is not sampled: spans that join it then record nothing. Begin
//! a trace only for a request that came without a context.
//!
//! A span is a small value that borrows its name and endpoint: it can be sent, copied into futures and kept in request
//! structs. There is no implicit current span, and dropping a span records nothing. A span leaves the node once
//! [`Span::client_receive`], [`Span::server_send`] or [`Span::end`] closes it; a span that is never closed leaves ten
//! seconds after its last annotation. Later annotations still become part of the span. To close a span at the end of its
//! scope, make an [`Open`] of it by [`Span::begin`], [`Span::serve`] or [`Span::call`].
//!
//! In code that runs for every IO use [`event!`] and [`tag!`], whose literals are looked up once, or a static [`Name`].
//!
//! The texts of names and endpoints must live as long as the spans that borrow them. For names from a configuration that is
//! usually the whole program: call `Endpoint::new(String::leak(name))` once.
//!
//! `blkin trace` shows a request by its id, in the form of `format!("{:016x}", span.context().trace_id())`.
//!
//! Names, events, keys and values may be any text of up to 4 KiB; longer texts are cut at a character boundary, and counted.
//! The collector shows names of spans and services in lower case, as Zipkin does.
//!
//! In the steady state recording makes no system call, takes no lock and allocates nothing. It may be done in signal
//! handlers, and keeps errno. A forked child records without any preparation. Recording needs a stack of 16 KiB if
//! dependencies are optimised, and of 32 KiB in cargo's `dev` profile without `[profile.dev.package."*"] opt-level = 1`. A
//! signal handler also needs room for what the kernel saves on its stack.
//!
//! The crate's feature `c` adds the C interface (`blkin/zipkin_c.h`), so that the program's C code records into the same
//! rings. Without this feature the crate exports no symbols: a plug-in in Rust then records independently of a host program
//! that uses `libblkin.so`.
//!
//! Environment variables are read when the program starts, and by an [`init`] that comes before the first trace or record, or
//! after a failed start; no thread may change the environment during that call. An empty variable counts as not set. A
//! variable that was removed since the program started keeps the value that it had then.
//!
//! | variable | meaning |
//! |---|---|
//! | `BLKIN_OFF` | any value but `0`: record nothing |
//! | `BLKIN_RATE`, else `RATE` | trace one of every N requests |
//! | `BLKIN_SOCKET` | where consumerd listens (`/run/blkin/consumerd.sock`) |
//! | `BLKIN_RING_BYTES` | size of each ring, a power of two (1 MiB; less on more than 15 CPUs) |
//! | `BLKIN_MODE` | `overwrite`: a flight recorder, which keeps the latest records for `blkin snapshot`; `discard` is the default |
//! | `BLKIN_PRODUCER` | `portable` or `rseq`: how rings are written; chosen automatically if not set |
//! | `BLKIN_STRINGS` | `bytes`: read C strings byte by byte, for a memory checker (the default under valgrind); `blocks`: 16 bytes at a time, which may read up to 15 bytes behind the end, but never in another page (the default on x86-64) |
//! | `BLKIN_WAKE` | `0`: never wake consumerd; waking is the only system call that a record may make |

#[allow(unsafe_code, reason = "C callers pass raw pointers; the module states what it requires of them")]
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
