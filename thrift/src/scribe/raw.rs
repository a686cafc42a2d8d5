//! `Log` calls whose entries are kept as they arrived, for a relay that reads, stores and sends them.

use thrift::protocol::{TMessageIdentifier, TMessageType, TOutputProtocol};

use crate::Limits;
use crate::binary::write_to;
use crate::frame::framed;
use crate::skim::{Skim, wire};

/// One entry, as slices of the call in which it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawEntry<'a> {
    /// The whole `LogEntry` struct, including unknown fields.
    pub bytes: &'a [u8],
    /// The category of the entry.
    pub category: &'a [u8],
    /// The message of the entry.
    pub message: &'a [u8],
}

/// A `Log` call with raw entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawLog<'a> {
    /// The sequence number, which the reply must repeat.
    pub seq: i32,
    /// Whether the peer waits for a reply.
    pub wants_reply: bool,
    /// The entries, in order.
    pub entries: Vec<RawEntry<'a>>,
}

/// The entries of a frame, if it is a `Log` call that [`parse_call`](super::parse_call) can read; they are the same ones. If
/// this returns `None`, `parse_call` tells what the frame is.
pub fn skim_log<'a>(frame: &'a [u8], limits: &Limits) -> Option<RawLog<'a>> {
    let mut skim = Skim::new(frame, limits.max_depth);
    let (name, kind, seq) = message_begin(&mut skim)?;
    let wants_reply = match kind {
        1 => true,
        4 => false,
        _ => return None,
    };
    if name != b"Log" {
        return None;
    }
    let entries = log_arguments(&mut skim, limits)?;
    Some(RawLog { seq, wants_reply, entries })
}

/// The entries in bytes that were joined from [`RawEntry::bytes`]; `None` if there is anything else in the bytes.
pub fn raw_entries(bytes: &[u8]) -> Option<Vec<RawEntry<'_>>> {
    let mut skim = Skim::new(bytes, usize::MAX);
    let mut entries = Vec::new();
    while skim.position() < bytes.len() {
        entries.push(entry(&mut skim)?);
    }
    Some(entries)
}

/// Encodes a framed `Log` call of `count` entries, whose bytes are `chunks`, joined.
pub fn encode_raw_log_call<'a>(
    seq: i32,
    count: usize,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> Vec<u8> {
    framed(|bytes| {
        write_to(bytes, |output| {
            output.write_message_begin(&TMessageIdentifier::new("Log", TMessageType::Call, seq))
        });
        bytes.extend_from_slice(&[wire::LIST, 0, 1, wire::STRUCT]);
        bytes.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
        chunks.into_iter().for_each(|chunk| bytes.extend_from_slice(chunk));
        bytes.push(wire::STOP);
    })
}

/// Reads name, type and sequence number of a message, with or without a version.
fn message_begin<'a>(skim: &mut Skim<'a>) -> Option<(&'a [u8], u8, i32)> {
    const VERSION: u32 = 0x8001_0000;
    let first = skim.i32()?;
    if first >= 0 {
        let name = skim.bytes(first)?;
        return Some((name, skim.byte()?, skim.i32()?));
    }
    if first.cast_unsigned() & 0xffff_0000 != VERSION {
        return None;
    }
    Some((skim.string()?, first.to_be_bytes()[3], skim.i32()?))
}

fn log_arguments<'a>(skim: &mut Skim<'a>, limits: &Limits) -> Option<Vec<RawEntry<'a>>> {
    let mut found = None;
    skim.fields(|skim, kind, id| {
        if (kind, id) != (wire::LIST, 1) {
            return Some(false);
        }
        let list = skim.list()?;
        if list.count > limits.max_entries {
            return None;
        }
        let mut entries = Vec::new();
        if list.element == wire::STRUCT {
            for _ in 0..list.count {
                entries.push(entry(skim)?);
            }
        } else {
            skim.skip_elements(list)?;
        }
        found = Some(entries);
        Some(true)
    })?;
    found
}

fn entry<'a>(skim: &mut Skim<'a>) -> Option<RawEntry<'a>> {
    let start = skim.position();
    let (mut category, mut message) = (&[][..], &[][..]);
    skim.fields(|skim, kind, id| {
        match (kind, id) {
            (wire::STRING, 1) => category = skim.string()?,
            (wire::STRING, 2) => message = skim.string()?,
            _ => return Some(false),
        }
        Some(true)
    })?;
    Some(RawEntry { bytes: skim.since(start), category, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::HEADER_BYTES;
    use crate::scribe::{LogEntry, encode_log_call, parse_call};

    fn entries() -> Vec<LogEntry> {
        ["a", "", "ccc"]
            .map(|message| LogEntry { category: "zipkin".into(), message: message.into() })
            .to_vec()
    }

    #[test]
    fn raw_entries_are_read_and_rewritten_byte_for_byte() {
        let call = encode_log_call(7, &entries());
        let log = skim_log(&call[HEADER_BYTES..], &Limits::default()).unwrap();
        assert_eq!((log.seq, log.wants_reply, log.entries.len()), (7, true, 3));
        assert_eq!((log.entries[2].category, log.entries[2].message), (&b"zipkin"[..], &b"ccc"[..]));
        let again = encode_raw_log_call(7, 3, log.entries.iter().map(|entry| entry.bytes));
        assert_eq!(again, call);
        let behind: Vec<u8> = log.entries.iter().flat_map(|entry| entry.bytes.to_vec()).collect();
        assert_eq!(raw_entries(&behind).unwrap(), log.entries);
        assert_eq!(raw_entries(&behind[1..]), None);
    }

    #[test]
    fn golden_calls_are_skimmed_as_the_decoder_reads_them() {
        for golden in [
            &include_bytes!("../../tests/golden/log_call.bin")[..],
            include_bytes!("../../tests/golden/log_call_old_style.bin"),
        ] {
            let frame = &golden[HEADER_BYTES..];
            let call = parse_call(frame, &Limits::default()).unwrap();
            let log = skim_log(frame, &Limits::default()).unwrap();
            let super::super::Method::Log(decoded) = call.method else { panic!() };
            let skimmed: Vec<_> = log.entries.iter().map(|entry| entry.message.to_vec()).collect();
            assert_eq!((log.seq, skimmed), (call.seq, decoded.into_iter().map(|e| e.message).collect()));
        }
    }

    #[test]
    fn every_truncation_of_a_call_is_rejected() {
        let call = encode_log_call(7, &entries());
        for end in HEADER_BYTES..call.len() {
            assert_eq!(skim_log(&call[HEADER_BYTES..end], &Limits::default()), None, "{end}");
        }
    }

    #[test]
    fn one_way_calls_are_skimmed_and_replies_are_not() {
        let mut call = encode_log_call(7, &entries())[HEADER_BYTES..].to_vec();
        call[3] = 4;
        let log = skim_log(&call, &Limits::default()).unwrap();
        assert_eq!((log.wants_reply, log.entries.len()), (false, 3));
        call[3] = 2;
        assert_eq!(skim_log(&call, &Limits::default()), None, "a reply");
    }

    #[test]
    fn the_number_of_entries_is_not_bounded_by_the_nesting_limit() {
        let entries = vec![entries().remove(0); 100];
        let limits = Limits { max_entries: 100, max_depth: 2, ..Limits::default() };
        let call = encode_log_call(1, &entries);
        assert_eq!(skim_log(&call[HEADER_BYTES..], &limits).unwrap().entries.len(), 100);
    }

    #[test]
    fn other_methods_and_too_many_entries_are_left_to_the_parser() {
        let name = [b"\x80\x01\x00\x01\0\0\0\x07getName\0\0\0\x01".as_slice(), &[0]].concat();
        assert_eq!(skim_log(&name, &Limits::default()), None);
        let limits = Limits { max_entries: 2, ..Limits::default() };
        assert_eq!(skim_log(&encode_log_call(1, &entries())[HEADER_BYTES..], &limits), None);
    }
}
