//! The annotation record: its layout in 64-byte grains.
//!
//! A record is one annotation. It starts with a *head grain*, followed by as many *continuation grains* as its
//! texts need. All words are little-endian `u64`.
//!
//! ```text
//! head grain                                          continuation grain
//! word 0  stamp                                       word 0      stamp
//! word 1  event: raw clock; integer: the value        words 1..7  56 bytes of the tail
//! word 2  trace id
//! word 3  span id                                     tail: entries, back to back
//! word 4  parent span id                              [tag u8][0 u8][length u16][length bytes]
//! word 5  name id (low 32) | endpoint id (high 32)    tag 1 name, 2 endpoint, 3 key, 4 string value,
//! word 6  key id (32) | kind (8) | level (8) | flags  128..255 extensions that a reader skips
//! word 7  ordinal (28 of low 32) | tail bytes (high 32)
//!
//! stamp   bits 0..36   position of this grain in its ring, in grains since the ring began (mod 2^36)
//!         bits 36..45  head: grains of the record, 1..=511; continuation: its index in the record, from 1
//!         bit  45      1 head, 0 continuation
//!         bits 46..64  cookie of the segment, never 0
//! ```
//!
//! A stamp is valid only for one place in one lap of one segment, and payload is never stored in word 0. Hence stale
//! bytes and payload are never taken for a record, and a reader that meets a hole can go on grain by grain to the next
//! valid stamp. The *ordinal* is the number of the record in its ring (mod 2^28): the ordinals on both sides of a hole
//! tell how many records were lost in it.
//!
//! Flags: 1, a text was cut; 2, the texts are in cells, see `cells`.
//!
//! An id of 0 in words 5 and 6 means that the text is in the tail. Other ids are offsets into the segment's
//! table of names.

mod cells;
mod draft;
mod endpoint;
mod layout;
mod pack;
mod parse;
mod stamp;

pub use cells::{
    ADDRESS_CELL, CELL_BYTES, CELLS_GRAINS, CELLS_TAIL_BYTES, KEY_CELLS, NAME_CELL, SERVICE_CELL,
    cells_traits,
};
pub use draft::{Draft, EndpointParts, Entry, Payload, Place, Source, cut, names_word, traits_word};
pub use endpoint::{Endpoint, EndpointRef};
pub use layout::{
    GRAIN_BYTES, GRAIN_WORDS, MAX_GRAINS, MAX_IP_BYTES, MAX_TEXT_BYTES, OLDEST_VERSION, ORDINAL_MASK,
    POSITION_MASK, VERSION, is_read,
};
pub use pack::{TAIL_WORDS, word_of};
pub use parse::{Invalid, Kind, Record, Records, Text, Value, records};
pub use stamp::Stamp;
