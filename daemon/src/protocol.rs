//! Which version of HTTP a connection speaks: who knows that the server speaks HTTP/2 begins with a text that is no request of
//! HTTP/1 (RFC 9113, 3.3 and 3.4).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// How that text begins. The rest of it is looked at by who reads the frames; PRI is no method (RFC 9113, 11.6).
const BEGIN: [u8; 4] = *b"PRI ";

/// A version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// A connection of which the first bytes were read. They are read again.
pub(crate) struct Begun<C> {
    inner: C,
    first: [u8; BEGIN.len()],
    read: usize,
    again: usize,
}

impl<C: AsyncRead + Unpin> Begun<C> {
    /// Waits until the first bytes tell. A connection that ends before is one of HTTP/1, which knows what to say of it.
    pub(crate) async fn begin(inner: C) -> io::Result<(Protocol, Self)> {
        let mut begun = Begun { inner, first: [0; BEGIN.len()], read: 0, again: 0 };
        while begun.read < BEGIN.len() {
            let came = begun.inner.read(&mut begun.first[begun.read..]).await?;
            begun.read += came;
            if came == 0 || !BEGIN.starts_with(&begun.first[..begun.read]) {
                return Ok((Protocol::Http1, begun));
            }
        }
        Ok((Protocol::Http2, begun))
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Begun<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &self.first[self.again..self.read];
        if left.is_empty() {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let length = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..length]);
        self.again += length;
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Begun<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn the_first_bytes_tell_the_version_however_they_come_and_are_read_again() {
        for (parts, expected) in [
            (&["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"][..], Protocol::Http2),
            (&["P", "R", "I", " * HTTP/2.0\r\n"], Protocol::Http2),
            (&["GET / HTTP/1.1\r\n"], Protocol::Http1),
            (&["P", "OST / HTTP/1.1\r\n"], Protocol::Http1),
            (&["PR", "OPFIND / HTTP/1.1\r\n"], Protocol::Http1),
            (&["PRI"], Protocol::Http1),
            (&[], Protocol::Http1),
        ] {
            let (mut peer, connection) = duplex(1 << 10);
            let sends = async {
                for part in parts {
                    peer.write_all(part.as_bytes()).await.unwrap();
                    tokio::task::yield_now().await;
                }
                drop(peer);
            };
            let reads = async {
                let (protocol, mut begun) = Begun::begin(connection).await.unwrap();
                let mut text = String::new();
                begun.read_to_string(&mut text).await.unwrap();
                (protocol, text)
            };
            let (read, ()) = tokio::join!(reads, sends);
            assert_eq!(read, (expected, parts.concat()));
        }
    }
}
