//! A proxy on a Scribe connection that loses one annotation without counting it: the ledger must notice that.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use blkin_thrift::frame::FrameReader;
use blkin_thrift::scribe::{self, Method};
use blkin_thrift::{Limits, frame::HEADER_BYTES};

/// The listening proxy; its threads end with the connections that pass through it.
#[derive(Debug)]
pub struct Cheat {
    address: String,
    cheated: Arc<AtomicBool>,
}

impl Cheat {
    /// Passes Scribe calls on to `upstream`, without one annotation of the first span that has several.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(upstream: &str) -> Result<Cheat> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let cheated = Arc::new(AtomicBool::new(false));
        let (upstream, done) = (upstream.to_owned(), cheated.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (upstream, done) = (upstream.clone(), done.clone());
                std::thread::spawn(move || pass(client, &upstream, &done));
            }
        });
        Ok(Cheat { address, cheated })
    }

    /// The address to send calls to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether it has lost its annotation.
    pub fn has_cheated(&self) -> bool {
        self.cheated.load(Ordering::SeqCst)
    }
}

/// Passes one connection in both directions until either side ends it.
fn pass(mut client: TcpStream, upstream: &str, done: &AtomicBool) -> Result<()> {
    let mut server = TcpStream::connect(upstream)?;
    let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        to.shutdown(Shutdown::Both)
    });
    let mut frames = FrameReader::new(&Limits::default());
    let mut bytes = vec![0; 64 << 10];
    loop {
        let read = client.read(&mut bytes)?;
        if read == 0 {
            return Ok(server.shutdown(Shutdown::Write)?);
        }
        frames.extend(&bytes[..read]);
        while let Some(frame) = frames.next_frame()? {
            server.write_all(&lessened(frame, done))?;
        }
    }
}

/// The frame with its header; the first suitable frame with one annotation less.
fn lessened(frame: &[u8], done: &AtomicBool) -> Vec<u8> {
    if !done.load(Ordering::SeqCst)
        && let Some(call) = without_one_annotation(frame)
    {
        done.store(true, Ordering::SeqCst);
        return call;
    }
    let mut whole = Vec::with_capacity(HEADER_BYTES + frame.len());
    whole.extend_from_slice(&u32::try_from(frame.len()).unwrap_or(u32::MAX).to_be_bytes());
    whole.extend_from_slice(frame);
    whole
}

fn without_one_annotation(frame: &[u8]) -> Option<Vec<u8>> {
    let limits = Limits::default();
    let call = scribe::parse_call(frame, &limits).ok()?;
    let Method::Log(mut entries) = call.method else { return None };
    for entry in &mut entries {
        let Ok(mut span) = scribe::decode_message(&entry.message, &limits) else { continue };
        if span.annotations.len() > 1 {
            span.annotations.pop();
            entry.message = scribe::span_message(&span);
            return Some(scribe::encode_log_call(call.seq, &entries));
        }
    }
    None
}
