//! Answers on the control socket, from a thread of its own.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdListener;
use std::time::Duration;

use rustix::process::getuid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};

use super::Settings;
use super::message::{Answer, MAX_REQUEST_BYTES, parse};
use super::peer::Reach;

/// An asker has this long to say what he wants and to hear the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of more askers than these, the one who came first must go: those who say nothing hold nobody up.
const MAX_ASKERS: usize = 64;
/// Pause when no connection can be accepted for want of descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Starts the thread, which serves until the process ends.
///
/// # Errors
/// When it cannot be started or the socket not be used.
pub fn start(socket: OwnedFd, settings: Settings) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _guard = runtime.enter();
        UnixListener::from_std(StdListener::from(socket))?
    };
    let serving = move || runtime.block_on(serve(&listener, &settings));
    std::thread::Builder::new().name("blkin-settings".into()).spawn(serving)?;
    Ok(())
}

async fn serve(listener: &UnixListener, settings: &Settings) {
    let mut askers = JoinSet::new();
    let mut order: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                order.retain(|asker| !asker.is_finished());
                if order.len() >= MAX_ASKERS
                    && let Some(first) = order.pop_front()
                {
                    first.abort();
                }
                order.push_back(
                    askers.spawn(tokio::time::timeout(PATIENCE, converse(stream, settings.clone()))),
                );
            }
            Err(e) => {
                tracing::warn!("failed to accept on the control socket: {e}");
                tokio::time::sleep(SHORTAGE_PAUSE).await;
            }
        }
        // Whoever went away in the midst harms only himself.
        while askers.try_join_next().is_some() {}
    }
}

async fn converse(mut stream: UnixStream, settings: Settings) -> io::Result<()> {
    let peer_uid = stream.peer_cred()?.uid();
    let request = read_request(&mut stream).await?;
    let answer = match parse(&request) {
        Ok(request) => {
            tracing::debug!(uid = peer_uid, ?request, "asked on the control socket");
            settings.ask(request, Reach::of(peer_uid, getuid().as_raw()))
        }
        Err(refusal) => refusal,
    };
    stream.write_all(&line(&answer)?).await?;
    stream.shutdown().await
}

/// Up to the end of the line, of what is sent, or of what may be.
async fn read_request(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut part = [0; MAX_REQUEST_BYTES];
    loop {
        let read = stream.read(&mut part).await?;
        request.extend_from_slice(&part[..read]);
        if let Some(end) = request.iter().position(|byte| *byte == b'\n') {
            request.truncate(end);
            return Ok(request);
        }
        if read == 0 || request.len() > MAX_REQUEST_BYTES {
            return Ok(request);
        }
    }
}

fn line(answer: &Answer) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream as StdStream;
    use std::path::PathBuf;

    fn started() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = StdListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        start(listener.into(), Settings::default()).unwrap();
        (folder, path)
    }

    fn answer(mut stream: StdStream) -> String {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_line_or_the_end_of_what_is_sent_is_answered_with_a_line() {
        let (_folder, path) = started();
        for (request, ends) in [(&b"{\"show\":{}}\n"[..], false), (b"{\"show\":{}}", true)] {
            let mut stream = StdStream::connect(&path).unwrap();
            stream.write_all(request).unwrap();
            if ends {
                stream.shutdown(Shutdown::Write).unwrap();
            }
            assert_eq!(answer(stream), "{\"done\":{\"rules\":[],\"programs\":[]}}\n");
        }
        let mut stream = StdStream::connect(&path).unwrap();
        stream.write_all(&[b'x'; MAX_REQUEST_BYTES + 1]).unwrap();
        assert!(answer(stream).contains("bad_request"));
    }

    #[test]
    fn those_who_say_nothing_hold_nobody_up() {
        let (_folder, path) = started();
        let silent: Vec<_> = (0..3 * MAX_ASKERS).map(|_| StdStream::connect(&path).unwrap()).collect();
        let mut stream = StdStream::connect(&path).unwrap();
        stream.write_all(b"{\"show\":{}}\n").unwrap();
        assert!(answer(stream).contains("done"));
        drop(silent);
    }
}
