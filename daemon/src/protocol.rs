//! Which version of HTTP a connection speaks: a client that knows that the server speaks HTTP/2 begins with a preface that is
//! not an HTTP/1 request (RFC 9113, 3.3 and 3.4).

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

/// The beginning of that preface. The HTTP/2 code checks the rest; no HTTP method is called PRI (RFC 9113, 11.6).
const BEGIN: [u8; 4] = *b"PRI ";

/// A version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// The first bytes of a connection, which are read a second time by the HTTP code.
#[derive(Debug, Default)]
pub(crate) struct First {
    bytes: [u8; BEGIN.len()],
    read: usize,
    again: usize,
}

impl First {
    /// Waits until the first bytes show the version. A connection that ends before counts as HTTP/1, whose code handles that.
    pub(crate) async fn read(connection: &mut (impl AsyncRead + Unpin)) -> io::Result<(Protocol, First)> {
        let mut first = First::default();
        while first.read < BEGIN.len() {
            let came = connection.read(&mut first.bytes[first.read..]).await?;
            first.read += came;
            if came == 0 || !BEGIN.starts_with(&first.bytes[..first.read]) {
                return Ok((Protocol::Http1, first));
            }
        }
        Ok((Protocol::Http2, first))
    }

    /// Copies what is left of the first bytes to `buffer`; returns whether there was anything left.
    pub(crate) fn give(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let left = &self.bytes[self.again..self.read];
        let length = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..length]);
        self.again += length;
        length > 0
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn http_version_is_detected_from_any_split_of_the_first_bytes() {
        for (parts, expected) in [
            (&["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"][..], Protocol::Http2),
            (&["P", "R", "I", " * HTTP/2.0\r\n"], Protocol::Http2),
            (&["GET / HTTP/1.1\r\n"], Protocol::Http1),
            (&["P", "OST / HTTP/1.1\r\n"], Protocol::Http1),
            (&["PR", "OPFIND / HTTP/1.1\r\n"], Protocol::Http1),
            (&["PRI"], Protocol::Http1),
            (&[], Protocol::Http1),
        ] {
            let (mut peer, mut connection) = duplex(1 << 10);
            let sends = async {
                for part in parts {
                    peer.write_all(part.as_bytes()).await.unwrap();
                    tokio::task::yield_now().await;
                }
                drop(peer);
            };
            let reads = async {
                let (protocol, mut first) = First::read(&mut connection).await.unwrap();
                let mut text = Vec::new();
                let mut small = [0; 3];
                let mut small = ReadBuf::new(&mut small);
                while first.give(&mut small) {
                    text.extend_from_slice(small.filled());
                    small.clear();
                }
                connection.read_to_end(&mut text).await.unwrap();
                (protocol, String::from_utf8(text).unwrap())
            };
            let (read, ()) = tokio::join!(reads, sends);
            assert_eq!(read, (expected, parts.concat()));
        }
    }
}
