//! How far the collector's clock is from this machine's: each span is placed by the clock of the machine that recorded it.

use super::Check;
use super::daemons::DaemonAnswers;
use crate::http::Dated;
use crate::units;

/// An HTTP date has whole seconds, and may be up to a second old.
const DATE_US: i64 = 2_000_000;
/// From this difference on it cannot be explained by the time that an answer took.
const LEAST_US: i64 = 1_000_000;

/// None if the clocks agree as far as whole seconds show, or if the answer had no date.
pub(super) fn check(answers: &DaemonAnswers) -> Option<Check> {
    let ahead_us = surely_ahead_us(answers.dated()?);
    let (way, other) = if ahead_us > 0 { ("ahead of", "behind") } else { ("behind", "ahead") };
    let far = units::duration(ahead_us.unsigned_abs());
    (ahead_us.abs() >= LEAST_US).then(|| {
        Check::warning(
            "clocks",
            format!("the clock of {} is {far} {way} this machine's, or more", answers.base),
            format!(
                "set the clock that is wrong, and run NTP or PTP on both machines: what programs record here appears that far \
                 {other} in traces, and searches for the last minutes or hours may not find it"
            ),
        )
    })
}

/// By how much the other clock is ahead at least, or behind if negative; 0 if neither is certain.
fn surely_ahead_us(dated: Dated) -> i64 {
    let Dated { theirs_us, asked_us, had_us } = dated;
    let [theirs_us, asked_us, had_us] =
        [theirs_us, asked_us, had_us].map(|us| i64::try_from(us).unwrap_or(i64::MAX));
    let ahead_us = theirs_us - had_us;
    let behind_us = asked_us.saturating_sub(theirs_us.saturating_add(DATE_US));
    if ahead_us > 0 { ahead_us } else { -behind_us.max(0) }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;
    use crate::http::{Client, answering};

    const NOON_US: u64 = 1_795_176_000_000_000;

    fn ahead_us(theirs_us: u64, asked_us: u64, had_us: u64) -> i64 {
        surely_ahead_us(Dated { theirs_us, asked_us, had_us })
    }

    #[test]
    fn slow_answers_and_whole_seconds_are_not_taken_for_clock_skew() {
        assert_eq!(ahead_us(NOON_US, NOON_US - 30_000_000, NOON_US), 0);
        assert_eq!(ahead_us(NOON_US, NOON_US + 1_999_999, NOON_US + 1_999_999), 0);
    }

    #[test]
    fn clock_skew_is_detected_ahead_and_behind() {
        assert_eq!(ahead_us(NOON_US + 3_600_000_000, NOON_US, NOON_US + 1_000_000), 3_599_000_000);
        assert_eq!(ahead_us(NOON_US - 3_600_000_000, NOON_US, NOON_US + 1_000_000), -3_598_000_000);
    }

    #[test]
    fn a_collector_whose_clock_differs_is_a_warning() {
        let at = |status: &'static str| {
            DaemonAnswers::ask_collector(answering(move |_| (status, "blkin_collector_commits_total 1\n")))
        };
        let past = check(&at("200 OK\r\ndate: Fri, 20 Nov 2020 19:52:00 GMT")).unwrap();
        assert!(
            past.status == Status::Warning && past.found.contains(" d behind this machine's"),
            "{}",
            past.found
        );
        assert!(past.advice.unwrap().contains(" that far ahead in traces"));
        let future = check(&at("200 OK\r\ndate: Fri, 20 Nov 2099 19:52:00 GMT")).unwrap();
        assert!(future.found.contains(" d ahead of this machine's"), "{}", future.found);
        assert!(check(&at("200 OK")).is_none(), "an answer without a date");
        assert!(check(&DaemonAnswers::ask_collector(Client::new("127.0.0.1:1"))).is_none());
    }
}
