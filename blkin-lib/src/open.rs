//! Spans that are closed when they are dropped.

use std::ops::Deref;

use crate::name::Name;
use crate::span::Span;

/// A [`Span`] that records its closing event when it is dropped: at the end of its scope, on the way out by `?` or a
/// panic, or with a future that is cancelled. Dereferences to its [`Span`].
///
/// ```
/// use blkin::{Context, Endpoint, Span};
///
/// const OSD: Endpoint = Endpoint::new("osd.0").at("10.0.0.8", 6800);
/// const JOURNAL: Endpoint = Endpoint::new("journal");
///
/// async fn write(request: Context, object: &str) -> std::io::Result<()> {
///     let served = Span::join("write", &OSD, request).serve();   // sr … ss
///     served.tag("object", object);
///     let _append = served.child("append", &JOURNAL).begin();    // begin … end
///     append(object).await
/// }
/// # async fn append(_: &str) -> std::io::Result<()> { Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "if it is dropped at once, the span is closed at once"]
pub struct Open<'a> {
    span: Span<'a>,
    closing: &'static Name,
}

impl<'a> Span<'a> {
    /// Records "begin" now, and "end" when the returned [`Open`] is dropped: for a step within this process.
    pub fn begin(self) -> Open<'a> {
        static BEGIN: Name = Name::new("begin");
        static END: Name = Name::new("end");
        self.event(&BEGIN);
        Open { span: self, closing: &END }
    }

    /// Records "sr" now, and "ss" when the returned [`Open`] is dropped: for the side that answers a call.
    pub fn serve(self) -> Open<'a> {
        static SENT: Name = Name::new("ss");
        self.server_receive();
        Open { span: self, closing: &SENT }
    }

    /// Records "cs" now, and "cr" when the returned [`Open`] is dropped: for the side that makes a call.
    pub fn call(self) -> Open<'a> {
        static RECEIVED: Name = Name::new("cr");
        self.client_send();
        Open { span: self, closing: &RECEIVED }
    }
}

impl Open<'_> {
    /// Closes the span now: records its closing event.
    pub fn end(self) {}
}

impl<'a> Deref for Open<'a> {
    type Target = Span<'a>;

    fn deref(&self) -> &Span<'a> {
        &self.span
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.span.event(self.closing);
    }
}
