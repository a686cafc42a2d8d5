//! Names that a program declares, which are known by identity instead of by content.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use blkin_ringbuf::process;

use crate::raw::Source;

/// A key or event that a program declares once, usually as a `static`: recording it compares no text. The macros
/// [`event!`](crate::event) and [`tag!`](crate::tag) declare one for each place they are written at.
///
/// ```
/// static ENQUEUED: blkin::Name = blkin::Name::new("Enqueued op");
/// # let span = blkin::Span::root("write", &blkin::Endpoint::new("gateway"));
/// span.event(&ENQUEUED);
/// ```
#[derive(Debug)]
pub struct Name {
    text: &'static str,
    /// 0 until it is looked up, and for as long as there is no room in the table.
    id: AtomicU32,
}

impl Name {
    /// A name that will be looked up when it is first recorded.
    pub const fn new(text: &'static str) -> Name {
        Name { text, id: AtomicU32::new(0) }
    }

    /// Its text.
    pub const fn text(&self) -> &'static str {
        self.text
    }

    #[cold]
    fn declare(&self) -> Source<&'static [u8]> {
        let id = process::declare(self.text.as_bytes());
        // Without room there is no id, now or later, and all threads look at this word.
        if id != 0 {
            self.id.store(id, Release);
        }
        Source::new(id, self.text.as_bytes())
    }
}

mod sealed {
    use crate::raw::Source;

    pub trait Key {
        /// Its id if it has one by now, else 0.
        fn id(&self) -> u32;

        /// What to record it as. `id`: what [`Key::id`] said.
        fn source(&self, id: u32) -> Source<&[u8]>;
    }
}

/// What names an event or a value: a `&str`, which is recognised by its content, or a [`Name`].
pub trait Key: sealed::Key {}

impl Key for &Name {}
impl Key for &str {}
impl Key for &String {}

impl sealed::Key for &Name {
    #[inline(always)]
    fn id(&self) -> u32 {
        // Acquire: whoever sees our record sees the text too, though another thread declared it.
        self.id.load(Acquire)
    }

    #[inline(always)]
    fn source(&self, id: u32) -> Source<&[u8]> {
        if id == 0 { self.declare() } else { Source::known(id) }
    }
}

impl sealed::Key for &str {
    #[inline(always)]
    fn id(&self) -> u32 {
        process::recognise(self.as_bytes())
    }

    #[inline(always)]
    fn source(&self, id: u32) -> Source<&[u8]> {
        Source::new(id, self.as_bytes())
    }
}

impl sealed::Key for &String {
    #[inline(always)]
    fn id(&self) -> u32 {
        self.as_str().id()
    }

    #[inline(always)]
    fn source(&self, id: u32) -> Source<&[u8]> {
        Source::new(id, self.as_bytes())
    }
}

/// An event at a [`Span`](crate::Span), its text a literal or another constant: the cheapest of all annotations.
///
/// ```
/// # let span = blkin::Span::root("write", &blkin::Endpoint::new("gateway"));
/// blkin::event!(span, "Enqueued op");
/// blkin::event!(span, concat!("Enqueued op", " of version 2"));
/// ```
#[macro_export]
macro_rules! event {
    ($span:expr, $text:expr $(,)?) => {
        $span.event($crate::__declared!($text))
    };
}

/// A key, a literal or another constant, and its value at a [`Span`](crate::Span).
///
/// ```
/// # let span = blkin::Span::root("write", &blkin::Endpoint::new("gateway"));
/// blkin::tag!(span, "bytes", 4096);
/// ```
#[macro_export]
macro_rules! tag {
    ($span:expr, $key:expr, $value:expr $(,)?) => {
        $span.tag($crate::__declared!($key), $value)
    };
}

/// The [`Name`] of the place where this is written. Items of a macro are seen by what its caller wrote in it: so this one
/// is in a block of its own, and has a name that nobody else gives.
#[doc(hidden)]
#[macro_export]
macro_rules! __declared {
    ($text:expr) => {{
        static __BLKIN_NAME: $crate::Name = $crate::Name::new($text);
        &__BLKIN_NAME
    }};
}

#[cfg(test)]
mod tests {
    use crate::{Context, Endpoint, Span};

    #[test]
    fn tag_takes_a_value_that_the_program_itself_calls_name() {
        let unsampled = Span::join("read", &Endpoint::new("osd.0"), Context::default());
        const NAME: &str = "alpha";
        crate::tag!(unsampled, "object", NAME);
    }

    #[test]
    fn the_text_of_event_and_tag_may_be_any_constant() {
        let unsampled = Span::join("read", &Endpoint::new("osd.0"), Context::default());
        const NAME: &str = "alpha";
        crate::event!(unsampled, NAME);
        crate::tag!(unsampled, concat!("ob", "ject"), 7);
    }

    #[test]
    #[rustfmt::skip]
    fn a_comma_may_stand_behind_the_last_argument_of_event_and_tag() {
        let unsampled = Span::join("read", &Endpoint::new("osd.0"), Context::default());
        crate::event!(unsampled, "alpha",);
        crate::tag!(unsampled, "object", 7,);
    }
}
