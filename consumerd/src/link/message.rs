//! The contents of messages, and how programs are named in them.

/// Bytes of a program's name as the kernel knows it.
pub const COMM_BYTES: usize = 16;

/// Name shown for a process whose name is not known any more.
pub const NAMELESS: &str = "?";

/// A printable name of a process, from the bytes of its name up to a zero, without a line feed at the end. Apart from letters and
/// digits only printable ASCII is shown, so nothing can control a terminal or reorder a line.
pub fn shown_name(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(COMM_BYTES)];
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_shown = |c: char| c.is_alphanumeric() || c.is_ascii_graphic() || c == ' ';
    let shown = |c: char| if is_shown(c) { c } else { '?' };
    let clean: String = String::from_utf8_lossy(text).trim_end().chars().map(shown).collect();
    if clean.is_empty() { NAMELESS.into() } else { clean }
}

/// A program as the kernel describes it; nothing here is the program's own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The holder's number, never used twice.
    pub number: u64,
    /// User.
    pub uid: u32,
    /// Process.
    pub pid: u32,
    /// First 15 bytes of its name.
    pub comm: String,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The settings and whether what is held is kept over a restart, as JSON.
    Hello(Vec<u8>),
    /// A program.
    Attach(Program),
    /// Every program that was held when the worker started has been named.
    Complete,
    /// The holder is alive; the flag says whether its sockets are in place.
    Beat(bool),
    /// The worker has rebuilt its state.
    Ready,
    /// The descriptors of this program are no longer needed.
    Release(u64),
}

impl Message {
    /// Encodes a message: one byte for its kind, then its content.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(json) => [b"H", json.as_slice()].concat(),
            Self::Attach(program) => encode_attach(program),
            Self::Complete => b"C".to_vec(),
            Self::Beat(has_sockets) => vec![b'B', u8::from(*has_sockets)],
            Self::Ready => b"R".to_vec(),
            Self::Release(number) => [b"X".as_slice(), &number.to_le_bytes()].concat(),
        }
    }

    /// Decodes a message; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        match (tag, rest.len()) {
            (b'H', _) => Some(Self::Hello(rest.to_vec())),
            (b'A', _) => decode_attach(rest).map(Self::Attach),
            (b'C', 0) => Some(Self::Complete),
            (b'B', 1) if rest[0] <= 1 => Some(Self::Beat(rest[0] == 1)),
            (b'R', 0) => Some(Self::Ready),
            (b'X', 8) => Some(Self::Release(u64::from_le_bytes(rest.try_into().ok()?))),
            _ => None,
        }
    }
}

fn encode_attach(program: &Program) -> Vec<u8> {
    let mut out = b"A".to_vec();
    out.extend_from_slice(&program.number.to_le_bytes());
    out.extend_from_slice(&program.uid.to_le_bytes());
    out.extend_from_slice(&program.pid.to_le_bytes());
    out.extend_from_slice(program.comm.as_bytes());
    out
}

fn decode_attach(rest: &[u8]) -> Option<Program> {
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let (uid, rest) = rest.split_first_chunk::<4>()?;
    let (pid, comm) = rest.split_first_chunk::<4>()?;
    Some(Program {
        number: u64::from_le_bytes(*number),
        uid: u32::from_le_bytes(*uid),
        pid: u32::from_le_bytes(*pid),
        comm: String::from_utf8(comm.to_vec()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_invalid_ones_are_rejected() {
        let program = Program { number: 7, uid: 1000, pid: 42, comm: "osd".into() };
        let all = [
            Message::Hello(b"{}".to_vec()),
            Message::Attach(program),
            Message::Complete,
            Message::Beat(true),
            Message::Beat(false),
            Message::Ready,
            Message::Release(9),
        ];
        for message in all {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        for bad in [&b""[..], b"Z", b"X123", b"Rx", b"A12", b"B", b"B\x02"] {
            assert_eq!(Message::decode(bad), None);
        }
    }

    #[test]
    fn names_are_shown_on_one_line_and_missing_ones_marked() {
        for (bytes, shown) in [
            (&b"ceph-osd\n"[..], "ceph-osd"),
            (b"osd\0\0\0\0", "osd"),
            (b"a\nb\x1b\xff\n", "a?b??"),
            ("größe (1)".as_bytes(), "größe (1)"),
            ("a\u{202e}b\u{2028}".as_bytes(), "a?b"),
            (b"0123456789abcdefgh", "0123456789abcdef"),
            (b"", NAMELESS),
            (&[0; 16], NAMELESS),
            (b"\n", NAMELESS),
        ] {
            assert_eq!(shown_name(bytes), shown, "{bytes:?}");
        }
    }
}
