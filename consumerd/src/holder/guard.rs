//! Answers HTTP requests with 503 while the worker is absent or stuck, so that `/healthz` tells the truth even then.
//!
//! The holder parses nothing: every request gets the same answer.

use std::io;
use std::net::TcpListener as StdListener;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
Content-Length: 63\r\nConnection: close\r\n\r\n{\"healthy\":false,\"workers\":[{\"name\":\"worker\",\"state\":\"stuck\"}]}";
/// Time limit for serving one client.
const PATIENCE: Duration = Duration::from_millis(500);

/// A second handle on the listener that the worker serves.
#[derive(Debug)]
pub(super) struct Guard(TcpListener);

impl Guard {
    /// Guards `listener`.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub(super) fn new(listener: &StdListener) -> io::Result<Self> {
        Ok(Self(TcpListener::from_std(listener.try_clone()?)?))
    }

    /// Answers one client.
    pub(super) async fn answer_one(&self) {
        match self.0.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(tokio::time::timeout(PATIENCE, answer(stream)))),
            Err(_) => tokio::time::sleep(PATIENCE).await,
        }
    }
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut asked = [0; 2048];
    let _whatever = stream.read(&mut asked).await?;
    stream.write_all(ANSWER).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_length_matches_the_body_of_the_answer() {
        let text = std::str::from_utf8(ANSWER).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
    }
}
