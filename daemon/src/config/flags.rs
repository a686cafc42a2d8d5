//! The values of flags; clap has already checked their types.

use serde::Serialize;
use serde_json::Value;

use super::place::flag;
use super::{ConfigError, as_table};

/// The values of the flags, by key.
///
/// # Errors
/// When a number is larger than any that TOML can hold.
pub(super) fn table(flags: &impl Serialize) -> Result<toml::Table, ConfigError> {
    as_table(flags).map_err(|error| beyond_toml(flags).unwrap_or(error))
}

/// The first flag whose number is too large for TOML; the error of the TOML library does not name it.
fn beyond_toml(flags: &impl Serialize) -> Option<ConfigError> {
    let said = serde_json::to_value(flags).ok()?;
    let is_beyond = |number: &Value| number.as_u64().is_some_and(|number| i64::try_from(number).is_err());
    let (key, number) = said.as_object()?.iter().find(|(_, number)| is_beyond(number))?;
    let reason = format!("{key}: {number} is too large; write a whole number of at most {}", i64::MAX);
    Some(ConfigError::Unusable { place: flag(key), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Overrides {
        share: f64,
        keep_bytes: u64,
    }

    #[test]
    fn flag_value_beyond_toml_range_is_an_error_naming_the_flag() {
        let told =
            |keep_bytes| table(&Overrides { share: 0.5, keep_bytes }).map_err(|error| error.to_string());
        let said = "failed to use the flag --keep-bytes: keep_bytes: 18446744073709551615 is too large; write a whole number of \
                    at most 9223372036854775807";
        assert_eq!(told(u64::MAX), Err(said.to_owned()));
        assert_eq!(told(7).unwrap().len(), 2);
    }
}
