//! Requests and answers on the control socket: one line of JSON each way.
//!
//! ```text
//! {"set":{"target":{"label":"ceph-osd"},"on":true,"rate":100,"levels":["err","warning"]}}
//! {"snapshot":{"target":{"pid":4711},"last_ms":5000}}     (answered with saved segments)
//! {"reset":{"target":{"pid":4711}}}     {"reset":{}}     {"show":{}}
//! {"done":{"rules":[...],"programs":[...]}}     {"refused":{"cause":"unknown_pid","why":"..."}}
//! ```

use serde::{Deserialize, Serialize};

use super::rules::{Change, InForce, Rule, Target};

/// Longest request.
pub const MAX_REQUEST_BYTES: usize = 4096;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Make a rule, or add to an existing one.
    Set {
        /// The programs that the rule is about.
        target: Target,
        /// What the rule says.
        #[serde(flatten)]
        says: Change,
    },
    /// Drop the rules about a target, or all rules.
    Reset {
        /// The target of the rules; all rules if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<Target>,
    },
    /// Only show what is in force.
    Show {},
}

/// A request for what the rings of programs hold; answered with saved segments instead of a line.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The programs whose rings are asked for.
    pub target: Target,
    /// Only what was recorded in the last so many milliseconds.
    #[serde(default)]
    pub last_ms: Option<u64>,
}

/// Reads a request for rings; `None` if it is anything else.
pub fn snapshot(bytes: &[u8]) -> Option<Snapshot> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Asked {
        snapshot: Snapshot,
    }
    let asked: Option<Asked> = serde_json::from_slice(bytes).ok();
    asked.map(|asked| asked.snapshot)
}

/// A program and what is in force for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramView {
    /// Process id.
    pub pid: u32,
    /// Its name when it was attached.
    pub comm: String,
    /// User id.
    pub uid: u32,
    /// What is in force for it.
    #[serde(flatten)]
    pub in_force: InForce,
}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The request is malformed.
    BadRequest,
    /// No such process is attached.
    UnknownPid,
    /// The program is another user's.
    NotAllowed,
    /// There are too many rules.
    TooManyRules,
    /// The rules could not be written.
    Failed,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The change is in force.
    Done {
        /// Every rule, the widest first.
        rules: Vec<Rule>,
        /// The programs of the request's target, or all.
        programs: Vec<ProgramView>,
    },
    /// Nothing was changed.
    Refused {
        /// The reason, for programs.
        cause: Cause,
        /// The reason, for people.
        why: String,
    },
}

impl Answer {
    pub(super) fn refused(cause: Cause, why: impl Into<String>) -> Answer {
        Answer::Refused { cause, why: why.into() }
    }
}

/// Reads a request.
///
/// # Errors
/// The answer that says what is wrong with the request.
pub fn parse(bytes: &[u8]) -> Result<Request, Answer> {
    let bad = |why: String| Answer::refused(Cause::BadRequest, why);
    if bytes.len() > MAX_REQUEST_BYTES {
        return Err(bad(format!("a request has at most {MAX_REQUEST_BYTES} bytes")));
    }
    let request = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
    match &request {
        Request::Set { says, .. } if says.is_empty() => Err(bad("the rule says nothing".into())),
        Request::Set { says: Change { rate: Some(rate), .. }, .. } if !(1..=MAX_RATE).contains(rate) => {
            Err(bad(format!("a rate is a number from 1 to {MAX_RATE}")))
        }
        Request::Set { target: Target::Label(label), .. } if label.is_empty() => {
            Err(bad("the label is empty".into()))
        }
        _ => Ok(request),
    }
}

/// Largest rate: every JSON reader can represent it.
const MAX_RATE: u64 = i64::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_requests_are_understood() {
        let text = br#"{"set":{"target":{"label":"ceph-osd"},"on":true,"rate":100,"levels":["err"]}}"#;
        let Ok(Request::Set { target, says }) = parse(text) else { panic!("not understood") };
        assert_eq!((target, says.on, says.rate), (Target::Label("ceph-osd".into()), Some(true), Some(100)));
        let of_pid = Request::Reset { target: Some(Target::Pid(4711)) };
        assert_eq!(parse(br#"{"reset":{"target":{"pid":4711}}}"#), Ok(of_pid));
        assert_eq!(parse(br#"{"reset":{}}"#), Ok(Request::Reset { target: None }));
        assert_eq!(parse(br#"{"show":{}}"#), Ok(Request::Show {}));
        assert!(parse(br#"{"set":{"target":"all","on":false}}"#).is_ok());
    }

    #[test]
    fn other_requests_are_refused_with_a_reason() {
        let refused = |text: &[u8]| match parse(text) {
            Err(Answer::Refused { cause: Cause::BadRequest, why }) => why,
            other => panic!("{other:?}"),
        };
        assert!(refused(br#"{"set":{"target":"all"}}"#).contains("nothing"));
        assert!(refused(br#"{"set":{"target":"all","rate":0}}"#).contains("1 to"));
        assert!(refused(br#"{"set":{"target":"all","levels":["loud"]}}"#).contains("emerg"));
        assert!(refused(br#"{"set":{"target":{"label":""},"on":true}}"#).contains("label"));
        assert!(refused(br#"{"set":{"target":"none","on":true}}"#).contains("none"));
        assert!(refused(&[b' '; MAX_REQUEST_BYTES + 1]).contains("4096"));
        for text in [&b""[..], b"{}", b"show", b"\xff", br#"{"show":{},"reset":{}}"#] {
            refused(text);
        }
    }
}
