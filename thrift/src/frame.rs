//! The framed transport: each message is preceded by its length, four bytes, big-endian.

use crate::{Error, Limits};

/// Size of a frame's header, which is the frame's length, in bytes.
pub const HEADER_BYTES: usize = 4;

/// The length that a frame's header announces, in bytes, without the header.
///
/// # Errors
/// If the length is over the limit, or if the header is the beginning of another protocol.
pub fn read_length(header: [u8; HEADER_BYTES], max_frame_bytes: usize) -> Result<usize, Error> {
    let announced = u32::from_be_bytes(header);
    match usize::try_from(announced) {
        Ok(length) if length <= max_frame_bytes => Ok(length),
        _ => Err(foreign(header).map_or(
            Error::TooLarge { what: "a frame", size: announced.into(), limit: max_frame_bytes as u64 },
            Error::NotFramed,
        )),
    }
}

/// The well-known protocol that begins with these bytes, if any. As a length they would mean hundreds of MiB.
fn foreign(header: [u8; HEADER_BYTES]) -> Option<&'static str> {
    match &header {
        b"HTTP" => Some("an HTTP answer"),
        b"GET " | b"HEAD" | b"POST" | b"PUT " | b"OPTI" | b"PRI " => Some("an HTTP request"),
        [0x16, 0x03, ..] | [0x15, 0x03, ..] => Some("TLS"),
        _ => None,
    }
}

/// Writes a frame around the bytes that `body` appends.
pub(crate) fn framed(body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = vec![0; HEADER_BYTES];
    body(&mut frame);
    let length = u32::try_from(frame.len() - HEADER_BYTES).unwrap_or(u32::MAX);
    frame[..HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    frame
}

/// Cuts a stream of bytes into frames. It holds only bytes that have arrived: no memory is allocated for an announced length.
#[derive(Debug)]
pub struct FrameReader {
    max_frame_bytes: usize,
    buffer: Vec<u8>,
    start: usize,
}

impl FrameReader {
    /// A reader for one connection.
    pub fn new(limits: &Limits) -> Self {
        FrameReader { max_frame_bytes: limits.max_frame_bytes, buffer: Vec::new(), start: 0 }
    }

    /// Appends bytes as they arrive from the peer.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.start));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame, without its header, once it has arrived completely.
    ///
    /// # Errors
    /// As [`read_length`]. The rest of the stream then has no meaning: the caller must close the connection.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, Error> {
        let Some((header, rest)) = self.buffer[self.start..].split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = read_length(*header, self.max_frame_bytes)?;
        if rest.len() < length {
            return Ok(None);
        }
        let body = self.start + HEADER_BYTES;
        self.start = body + length;
        Ok(Some(&self.buffer[body..body + length]))
    }

    /// Bytes that are held for a frame that has not arrived completely.
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len() - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_were_read_free_their_memory() {
        let mut reader = FrameReader::new(&Limits::default());
        for _ in 0..1000 {
            reader.extend(&[0, 0, 0, 5, 1, 2]);
            assert_eq!(reader.next_frame().unwrap(), None);
            assert_eq!(reader.pending_bytes(), 6);
            reader.extend(&[3, 4, 5]);
            assert_eq!(reader.next_frame().unwrap(), Some(&[1, 2, 3, 4, 5][..]));
            assert_eq!(reader.pending_bytes(), 0);
        }
        assert!(reader.buffer.capacity() < 100, "{}", reader.buffer.capacity());
    }
}
