//! Points in time as people write and read them.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::units;

/// This moment, in microseconds since 1970.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// A moment in UTC, to the microsecond: `2026-11-20 19:52:00.175031 UTC`. Negative values lie before 1970.
pub fn moment(since_epoch_us: impl Into<i128>) -> String {
    let since_epoch_us = since_epoch_us.into();
    let (seconds, micros) = (since_epoch_us.div_euclid(1_000_000), since_epoch_us.rem_euclid(1_000_000));
    let (year, month, day) = civil(seconds.div_euclid(86_400) as i64);
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} UTC")
}

/// Year, month and day of a count of days since 1970-01-01 (Howard Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Digits of milliseconds since 1970, for the years 2001 to 2286. Fewer digits are probably seconds, and more microseconds, such as
/// `start_us` in `blkin traces --json`: taken for milliseconds they would name a time without any traces.
const MILLISECONDS_DIGITS: usize = 13;

/// Parses a moment on the command line.
///
/// # Errors
/// As [`parse_moment_us`].
pub fn parse(text: &str) -> Result<u64, String> {
    parse_moment_us(text, now_us())
}

/// Parses a moment: how long ago it was (`2h`), a date, which means 00:00 UTC (`2026-11-20`), a date and a time with its zone
/// (`2026-11-20 19:52 UTC`, `2026-11-20T20:52:00.5+01:00`), or milliseconds since 1970. Returns microseconds since 1970.
///
/// # Errors
/// A sentence that lists the accepted forms.
pub fn parse_moment_us(text: &str, now_us: u64) -> Result<u64, String> {
    if let Some(milliseconds) = text.parse::<u64>().ok().filter(|_| text.len() == MILLISECONDS_DIGITS) {
        return Ok(milliseconds.saturating_mul(1_000));
    }
    if let Ok(ago_us) = units::parse_duration_us(text) {
        return Ok(now_us.saturating_sub(ago_us));
    }
    parse_date_us(text.trim()).ok_or_else(|| {
        "write how long ago (30m, 2h), a date (2026-11-20: 00:00 UTC), a date and time with its zone \
         (2026-11-20T19:52:00Z, 2026-11-20 20:52+01:00), or milliseconds since 1970 (13 digits)"
            .to_owned()
    })
}

fn parse_date_us(text: &str) -> Option<u64> {
    if let Some(days) = parse_day(text) {
        return u64::try_from(days).ok()?.checked_mul(86_400_000_000);
    }
    let (local, offset_seconds) = zone(text)?;
    let (date, time) = local.split_once(['T', 't', ' '])?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let with_seconds = if time.len() == 5 { format!("{time}:00") } else { time.to_owned() };
    let [hour, minute, second] = parts(&with_seconds, ':')?;
    let days = parse_day(date)?;
    let in_time = hour < 24 && minute < 60 && second <= 60;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - offset_seconds;
    let micros: u64 = format!("{:0<6}", digits(fraction)?).get(..6)?.parse().ok()?;
    u64::try_from(seconds).ok().filter(|_| in_time)?.checked_mul(1_000_000)?.checked_add(micros)
}

/// Parses the date of an HTTP answer, `Fri, 20 Nov 2026 19:52:00 GMT`; returns microseconds since 1970.
pub(crate) fn parse_http_us(text: &str) -> Option<u64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let [_, day, month, year, time, "GMT"] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
    let month = MONTHS.find(month).filter(|at| month.len() == 3 && at % 3 == 0)? / 3 + 1;
    parse_date_us(&format!("{year}-{month}-{day}T{time}Z"))
}

/// Days from 1970-01-01 to a date.
fn parse_day(date: &str) -> Option<i64> {
    let [year, month, day] = parts(date, '-')?;
    days_of(year, month, day)
}

/// The text before the zone, and how many seconds the zone is ahead of UTC.
fn zone(text: &str) -> Option<(&str, i64)> {
    if let Some(local) = text.strip_suffix(['Z', 'z']).or_else(|| text.strip_suffix("UTC")) {
        return Some((local.trim_end(), 0));
    }
    let (local, offset) = text.split_at_checked(text.len().checked_sub("+00:00".len())?)?;
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = offset.strip_prefix(['+', '-'])?.split_once(':')?;
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours < 24 && minutes < 60).then_some((local.trim_end(), sign * (hours * 3_600 + minutes * 60)))
}

/// Three numbers with something between them.
fn parts(text: &str, between: char) -> Option<[i64; 3]> {
    let numbers: Vec<i64> = text.split(between).map(number).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

fn number(text: &str) -> Option<i64> {
    digits(text).filter(|text| text.len() <= 4)?.parse().ok()
}

/// The same text, if it consists of digits only.
fn digits(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Days from 1970-01-01 to this one, if there is such a day (the inverse of [`civil`]).
fn days_of(year: i64, month: i64, day: i64) -> Option<i64> {
    let shifted_year = year - i64::from(month <= 2);
    let (era, year_of_era) = (shifted_year.div_euclid(400), shifted_year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days =
        era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    (civil(days) == (year, month, day)).then_some(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_follow_the_calendar() {
        assert_eq!(moment(0), "1970-01-01 00:00:00.000000 UTC");
        assert_eq!(moment(-1), "1969-12-31 23:59:59.999999 UTC");
        assert_eq!(moment(951_782_400_000_001_u64), "2000-02-29 00:00:00.000001 UTC");
        assert_eq!(moment(1_795_204_320_175_000_u64), "2026-11-20 19:52:00.175000 UTC");
    }

    #[test]
    fn moments_are_parsed_with_a_zone_as_shown_or_as_a_date() {
        const SHOWN: u64 = 1_795_204_320_175_000;
        for text in [
            "2026-11-20T19:52:00.175Z",
            "2026-11-20 19:52:00.175000 UTC",
            "2026-11-20T20:52:00.175+01:00",
            "2026-11-20 14:22:00.1750000-05:30",
            "2026-11-21T00:00:00.175 +04:08",
            "1795204320175",
        ] {
            assert_eq!(parse_moment_us(text, 0).unwrap(), SHOWN, "{text}");
        }
        assert_eq!(parse_moment_us("2026-11-20T19:52Z", 0).unwrap(), SHOWN - 175_000);
        for begin in ["2000-02-29T00:00:00Z", "2000-02-29"] {
            assert_eq!(parse_moment_us(begin, 0).unwrap(), 951_782_400_000_000, "{begin}");
        }
        assert_eq!(parse_moment_us("2s", 5_000_000).unwrap(), 3_000_000);
        assert_eq!(parse_moment_us("0", 5_000_000).unwrap(), 5_000_000);
    }

    #[test]
    fn http_dates_are_parsed() {
        assert_eq!(parse_http_us("Fri, 20 Nov 2026 19:52:00 GMT"), Some(1_795_204_320_000_000));
        for text in [
            "",
            "Fri, 20 anF 2026 19:52:00 GMT",
            "Fri, 20 Nov 2026 19:52:00",
            "Friday, 20-Nov-26 19:52:00 GMT",
        ] {
            assert_eq!(parse_http_us(text), None, "{text}");
        }
    }

    #[test]
    fn moments_without_a_zone_and_impossible_dates_are_refused() {
        for text in [
            "",
            "yesterday",
            "19:52",
            "2026-11",
            "2026-11-20Z",
            "2026-11-20+01:00",
            "2026-02-29",
            "1969-12-31",
            "20261120",
            "2026-11-20T19:52:00",
            "2026-11-20 19:52",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-20T24:00:00Z",
            "2026-11-20T19:60:00Z",
            "2026-11-20T19:52:00+25:00",
            "2026-11-20T19:52:00.Z",
            "1969-12-31T00:00:00Z",
            "-1-01-01T00:00:00Z",
            "+026-11-20T19:52:00Z",
            "12345",
            "1795204320",
            "1795204320175031",
            "1795204320175031000",
            "\u{661}\u{661}Z",
        ] {
            assert!(parse_moment_us(text, 0).unwrap_err().contains("with its zone"), "{text}");
        }
    }
}
