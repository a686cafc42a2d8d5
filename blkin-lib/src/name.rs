//! Names that a program declares once, so that the library need not compare their text.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use blkin_ringbuf::process;

use crate::raw::Source;

/// A key or event that a program declares once, usually as a `static`: recording it compares no text. Each use of the macros
/// [`event!`](crate::event) and [`tag!`](crate::tag) declares one.
///
/// ```
/// static ENQUEUED: blkin::Name = blkin::Name::new("Enqueued op");
/// # let span = blkin::Span::root("write", &blkin::Endpoint::new("gateway"));
/// span.event(&ENQUEUED);
/// ```
#[derive(Debug)]
pub struct Name {
    text: &'static str,
    /// The id in the table of names: 0 until the name is looked up, and for as long as the table has no room for it.
    id: AtomicU32,
}

impl Name {
    /// A name with this text, which is looked up when the name is first recorded.
    pub const fn new(text: &'static str) -> Name {
        Name { text, id: AtomicU32::new(0) }
    }

    /// The name's text.
    pub const fn text(&self) -> &'static str {
        self.text
    }

    #[cold]
    fn declare(&self) -> Source<&'static [u8]> {
        let id = process::declare(self.text.as_bytes());
        // Without room in the table there is no id. Do not store 0 then: all threads read this word.
        if id != 0 {
            self.id.store(id, Release);
        }
        Source::new(id, self.text.as_bytes())
    }
}

mod sealed {
    use crate::raw::Source;

    pub trait Key {
        /// The key's id in the table of names, or 0 if it has none yet.
        fn id(&self) -> u32;

        /// The form in which to record the key. `id` is the answer of [`Key::id`].
        fn source(&self, id: u32) -> Source<&[u8]>;
    }
}

/// The name of an event or the key of a value: a text, which is recognised by its content, or a [`Name`].
pub trait Key: sealed::Key {}

impl Key for &Name {}
impl Key for &str {}
impl Key for &String {}

impl sealed::Key for &Name {
    #[inline(always)]
    fn id(&self) -> u32 {
        // Acquire: a consumer that sees our record also sees the text, even if another thread declared it.
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

/// Records an event on a [`Span`](crate::Span). The text is a literal or another constant. The cheapest annotation.
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

/// Records a key and its value on a [`Span`](crate::Span). The key is a literal or another constant.
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

/// Declares the [`Name`] of one use of a macro. The caller's expressions can see an item that the macro declares beside them:
/// so this item is in a block of its own, and has a name that no program uses.
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
    fn tag_accepts_a_constant_called_name_as_its_value() {
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
    fn event_and_tag_accept_a_trailing_comma() {
        let unsampled = Span::join("read", &Endpoint::new("osd.0"), Context::default());
        crate::event!(unsampled, "alpha",);
        crate::tag!(unsampled, "object", 7,);
    }
}
