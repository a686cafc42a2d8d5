//! Reads a server's reply. A reply that BlkKin's servers could send must read back the same after it is written.
#![no_main]

use blkin_thrift::scribe::{self, ExceptionKind, Outcome, Reply};
use blkin_thrift::{Limits, frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits::default();
    let Ok(reply) = scribe::decode_reply(bytes, &limits) else { return };
    if let Some(written) = written(&reply) {
        let again = scribe::decode_reply(&written[frame::HEADER_BYTES..], &limits);
        assert_eq!(again, Ok(reply));
    }
});

/// Encodes the reply; `None` for an exception that BlkKin's servers do not send.
fn written(reply: &Reply) -> Option<Vec<u8>> {
    match &reply.outcome {
        Outcome::Result(code) => Some(scribe::encode_log_reply(reply.seq, *code)),
        Outcome::Exception(exception) => {
            let kinds =
                [ExceptionKind::UnknownMethod, ExceptionKind::InternalError, ExceptionKind::ProtocolError];
            let kind = kinds.into_iter().find(|kind| *kind as i32 == exception.kind)?;
            Some(scribe::encode_exception("Log", reply.seq, kind, &exception.message))
        }
    }
}
