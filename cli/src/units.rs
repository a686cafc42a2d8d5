//! Durations, ages and counts as people read them.

/// `duration_us` for people: `870 µs`, `4.874 ms`, `1.250 s`, `12 min 5 s`.
pub fn duration(duration_us: u64) -> String {
    match duration_us {
        0..1_000 => format!("{duration_us} µs"),
        1_000..1_000_000 => format!("{}.{:03} ms", duration_us / 1_000, duration_us % 1_000),
        1_000_000..60_000_000 => format!("{}.{:03} s", duration_us / 1_000_000, duration_us / 1_000 % 1_000),
        60_000_000..3_600_000_000 => {
            format!("{} min {} s", duration_us / 60_000_000, duration_us / 1_000_000 % 60)
        }
        3_600_000_000..360_000_000_000 => {
            format!("{} h {} min", duration_us / 3_600_000_000, duration_us / 60_000_000 % 60)
        }
        _ => format!("{} d", duration_us / 86_400_000_000),
    }
}

/// How long ago something was: `3 s ago`, `12 min ago`, `5 h ago`, `2 d ago`; or `in 5 h`, if it comes from a machine whose clock
/// is ahead.
pub fn age(then_us: u64, now_us: u64) -> String {
    let seconds = now_us.abs_diff(then_us) / 1_000_000;
    let far = match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    };
    if then_us > now_us && seconds > 0 { format!("in {far}") } else { format!("{far} ago") }
}

/// `1 trace`, `7 traces`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Parses `250us`, `10ms`, `1.5s`, `30m`, `2h`, `1d`. A number without a unit is refused as ambiguous, except 0.
///
/// # Errors
/// A sentence that lists the accepted forms.
pub fn parse_duration_us(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 8] = [
        ("µs", 1.0),
        ("us", 1.0),
        ("ms", 1e3),
        ("min", 60e6),
        ("s", 1e6),
        ("m", 60e6),
        ("h", 3_600e6),
        ("d", 86_400e6),
    ];
    if text == "0" {
        return Ok(0);
    }
    let unit = UNITS.iter().find_map(|(suffix, scale)| Some((text.strip_suffix(suffix)?, *scale)));
    let read = unit.and_then(|(number, scale)| Some(number.trim().parse::<f64>().ok()? * scale));
    match read {
        Some(value) if (0.0..1e18).contains(&value) => Ok(value.round() as u64),
        _ => Err("write a number with its unit: 250us, 10ms, 1.5s, 30m, 2h or 1d".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_the_digits_that_matter() {
        let shown = [0, 999, 4_874, 1_250_000, 725_000_000].map(duration);
        assert_eq!(shown, ["0 µs", "999 µs", "4.874 ms", "1.250 s", "12 min 5 s"]);
    }

    #[test]
    fn ages_are_rounded_down() {
        let ago = |age_us| age(0, age_us);
        assert_eq!([3_900_000, 720_000_000, 20_000_000_000].map(ago), ["3 s ago", "12 min ago", "5 h ago"]);
    }

    #[test]
    fn times_in_the_future_are_shown_as_such() {
        let ahead = |by_us| age(by_us, 0);
        assert_eq!([900_000, 3_900_000, 86_400_000_000].map(ahead), ["0 s ago", "in 3 s", "in 1 d"]);
    }

    #[test]
    fn counts_are_shown_in_the_singular_or_plural() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "trace")), ["0 traces", "1 trace", "2 traces"]);
    }

    #[test]
    fn durations_are_parsed_with_their_unit() {
        let read = ["250us", "0", "10ms", "1.5s", "30m", "2min", "2h", "1d"]
            .map(|text| parse_duration_us(text).unwrap());
        assert_eq!(
            read,
            [250, 0, 10_000, 1_500_000, 1_800_000_000, 120_000_000, 7_200_000_000, 86_400_000_000]
        );
        for wrong in ["", "1", "250", "ms", "-1s", "ten", "1e30s", "NaN", "NaNs"] {
            assert!(parse_duration_us(wrong).is_err(), "{wrong}");
        }
    }
}
