//! Answers Scribe calls: `OK` once the batch is committed durably; `TRY_LATER` if it was not stored, so that the client keeps
//! it.

use std::net::SocketAddr;

use blkin_scribe::server::{Answer, Service};
use blkin_thrift::Error;
use blkin_thrift::scribe::{Method, ResultCode, parse_call, skim_log};

use super::{Ingest, Source, Submitted, Transport};

impl Service for Ingest {
    /// `None` if the batch was refused at once, as when the store's queue had no room.
    type Pending = Option<Submitted>;

    fn call(&self, frame: &[u8], peer: SocketAddr) -> Result<Answer<Self::Pending>, Error> {
        let source = Source { transport: Transport::Scribe, peer: Some(peer) };
        let limits = self.settings.now().limits();
        if let Some(log) = skim_log(frame, &limits) {
            let entries = log.entries.iter().map(|entry| (entry.category, entry.message));
            let pending = self.submit(self.scribe_entries(entries, frame.len(), source)).ok();
            return Ok(Answer::Later { seq: log.seq, wants_reply: log.wants_reply, pending });
        }
        let call = match parse_call(frame, &limits) {
            Ok(call) => call,
            Err(bad) => {
                // This only counts the call: whether the count is committed changes nothing for the client.
                let _counted = self.submit(self.broken(&bad, source));
                // The log names the sender already, as of every other reject.
                return bad.reply.map(Answer::Ready).ok_or(bad.cause);
            }
        };
        Ok(match &call.method {
            Method::Log(entries) => {
                let entries = entries.iter().map(|entry| (entry.category.as_bytes(), &*entry.message));
                let pending = self.submit(self.scribe_entries(entries, frame.len(), source)).ok();
                Answer::Later { seq: call.seq, wants_reply: call.wants_reply, pending }
            }
            Method::Fb303(_) => Answer::Ready(self.fb303_status().answer(&call).unwrap_or_default()),
            Method::Unknown(_) => Answer::Ready(call.unknown_method_reply().unwrap_or_default()),
        })
    }

    async fn settled(&self, pending: Self::Pending) -> ResultCode {
        let Some(pending) = pending else { return ResultCode::TryLater };
        match self.committed(pending).await {
            Ok(()) => ResultCode::Ok,
            Err(_) => ResultCode::TryLater,
        }
    }
}
