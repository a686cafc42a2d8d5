//! Sets of severity levels, written as syslog's names.

use serde::{Deserialize, Serialize};

/// Syslog's eight levels, the most severe first: level n is the nth.
pub const NAMES: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

/// Levels that are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Levels(u8);

impl Levels {
    /// Every level.
    pub const ALL: Levels = Levels(0xff);

    /// The levels that are not recorded, as in a control page: bit n for level n.
    pub fn blocked(self) -> u8 {
        !self.0
    }
}

impl TryFrom<Vec<String>> for Levels {
    type Error = String;

    fn try_from(names: Vec<String>) -> Result<Self, String> {
        let mut levels = 0;
        for name in names {
            let Some(level) = NAMES.iter().position(|known| *known == name) else {
                return Err(format!("{name:?} is not a level; the levels are: {}", NAMES.join(" ")));
            };
            levels |= 1 << level;
        }
        // To record nothing at all there is "off", which is easier to recognise.
        if levels == 0 {
            Err("no level is named; to record nothing, switch it off".into())
        } else {
            Ok(Levels(levels))
        }
    }
}

impl From<Levels> for Vec<String> {
    fn from(levels: Levels) -> Self {
        let is_in = |level: &usize| levels.0 & 1 << level != 0;
        (0..NAMES.len()).filter(is_in).map(|level| NAMES[level].to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_names_become_bits_and_read_back() {
        let levels: Levels = serde_json::from_str(r#"["err","emerg"]"#).unwrap();
        assert_eq!(levels.blocked(), 0b1111_0110);
        assert_eq!(serde_json::to_string(&levels).unwrap(), r#"["emerg","err"]"#);
        assert_eq!((Levels::ALL.blocked(), Vec::from(Levels::ALL).len()), (0, 8));
    }

    #[test]
    fn unknown_levels_and_empty_sets_are_refused_with_a_reason() {
        let refused = |text| serde_json::from_str::<Levels>(text).unwrap_err().to_string();
        assert!(refused(r#"["error"]"#).contains("emerg alert crit err"));
        assert!(refused("[]").contains("off"));
    }
}
