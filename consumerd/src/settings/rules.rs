//! Rules about what programs record, and which of them wins.
//!
//! Three settings are decided one by one: whether a program records at all, one of how many requests it begins to
//! trace, and which levels it records. For each setting, the narrowest rule wins that concerns the program and says something
//! about the setting. A rule about a process is narrower than one about a name, and that is narrower than one about all
//! programs. Of two rules with the same target, one about a single user's programs is narrower than one about everybody's.
//! So `--all --off` and `--pid 7 --rate 100` leave process 7 off.

use serde::{Deserialize, Serialize};

use super::levels::Levels;
use super::peer::Reach;

/// Most rules.
pub const MAX_RULES: usize = 256;
/// How many of these only clients that reach all programs may make, so that users cannot use up all rules.
pub const RULES_FOR_ALL: usize = 64;
/// Most rules that one user may make about his own programs.
pub const MAX_RULES_OF_USER: usize = 16;

/// The programs that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// Every program, also those to come.
    All,
    /// Every program of that name (the first 15 bytes, as in /proc/PID/comm), also those to come.
    Label(String),
    /// One process, as long as it lives.
    Pid(u32),
}

/// What a rule says; what it says nothing about is left to wider rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Whether anything is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<bool>,
    /// Of how many requests that begin in the program one is traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Levels that are recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels: Option<Levels>,
}

impl Change {
    /// Whether the rule says nothing at all.
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }

    fn over(self, before: Change) -> Change {
        Change {
            on: self.on.or(before.on),
            rate: self.rate.or(before.rate),
            levels: self.levels.or(before.levels),
        }
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The programs that the rule is about.
    pub target: Target,
    /// If given, the rule is only about programs of this user: the owner of the process, or the user who made the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// For a rule about a process, when the process started: the process id may be reused by another process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born: Option<u64>,
    /// What the rule says.
    #[serde(flatten)]
    pub says: Change,
}

/// The properties of a program that rules depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// User id.
    pub uid: u32,
    /// Process id.
    pub pid: u32,
    /// When the process started, in the kernel's ticks; 0 if that could not be read.
    pub born: u64,
    /// The name that it had when it was attached.
    pub comm: String,
}

/// What is in force for one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct InForce {
    /// Whether anything is recorded.
    pub on: bool,
    /// Of how many requests that begin in the program one is traced; 0: as its environment says.
    pub rate: u64,
    /// Levels that are recorded while recording is on.
    pub levels: Levels,
}

impl InForce {
    /// The levels that are not recorded, as in a control page; all levels when recording is off.
    pub fn blocked_levels(&self) -> u8 {
        if self.on { self.levels.blocked() } else { u8::MAX }
    }
}

impl Rule {
    /// A rule about one process.
    pub fn about_process(program: &Subject, says: Change) -> Rule {
        Rule { target: Target::Pid(program.pid), uid: Some(program.uid), born: Some(program.born), says }
    }

    /// A rule about all programs of a target that are within reach, also those to come.
    pub fn about_many(target: Target, reach: Reach, says: Change) -> Rule {
        Rule { target, uid: reach.only(), born: None, says }
    }

    fn is_about_same(&self, other: &Rule) -> bool {
        self.target == other.target && self.uid == other.uid && self.born == other.born
    }

    /// Whether the rule is about this program.
    pub fn concerns(&self, program: &Subject) -> bool {
        let is_target = match &self.target {
            Target::All => true,
            Target::Label(label) => *label == program.comm,
            Target::Pid(pid) => *pid == program.pid && self.born == Some(program.born),
        };
        is_target && self.uid.is_none_or(|uid| uid == program.uid)
    }

    fn narrowness(&self) -> (u8, bool) {
        let target = match self.target {
            Target::All => 0,
            Target::Label(_) => 1,
            Target::Pid(_) => 2,
        };
        (target, self.uid.is_some())
    }
}

/// The error when there are too many rules to add one; the number counts those that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {0} rules already; reset some of them")]
pub struct Full(pub usize);

/// All rules, the widest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// All rules, the widest first.
    pub fn all(&self) -> &[Rule] {
        &self.0
    }

    /// Adds a rule, or merges it into the rule about the same programs.
    ///
    /// # Errors
    /// When there are too many rules, or a user who reaches only his own programs has too many.
    pub fn change(&mut self, new: Rule, reach: Reach) -> Result<(), Full> {
        if let Some(rule) = self.0.iter_mut().find(|rule| rule.is_about_same(&new)) {
            rule.says = new.says.over(rule.says);
            return Ok(());
        }
        let most = if reach == Reach::All { MAX_RULES } else { MAX_RULES - RULES_FOR_ALL };
        if self.0.len() >= most {
            return Err(Full(self.0.len()));
        }
        let of_user = self.0.iter().filter(|rule| rule.uid == new.uid).count();
        if reach != Reach::All && of_user >= MAX_RULES_OF_USER {
            return Err(Full(of_user));
        }
        self.0.push(new);
        self.0.sort_by_key(Rule::narrowness);
        Ok(())
    }

    /// Drops the rules about a target, or all rules, as far as they are within reach. Returns how many were dropped.
    pub fn reset(&mut self, target: Option<&Target>, reach: Reach) -> usize {
        let before = self.0.len();
        let is_meant = |rule: &Rule| target.is_none_or(|target| *target == rule.target);
        self.0.retain(|rule| !(is_meant(rule) && reach.holds_rule(rule.uid)));
        before - self.0.len()
    }

    /// Drops rules about processes for which `lives` is false. Returns whether there were any.
    pub fn forget_dead(&mut self, lives: impl Fn(u32, u64) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|rule| match (&rule.target, rule.born) {
            (Target::Pid(pid), Some(born)) => lives(*pid, born),
            _ => true,
        });
        before != self.0.len()
    }

    /// What all rules together say about a program.
    pub fn in_force(&self, program: &Subject) -> InForce {
        let concerning = self.0.iter().filter(|rule| rule.concerns(program));
        let says = concerning.fold(Change::default(), |wider, rule| rule.says.over(wider));
        InForce {
            on: says.on.unwrap_or(true),
            rate: says.rate.unwrap_or(0),
            levels: says.levels.unwrap_or(Levels::ALL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: Change = Change { on: Some(false), rate: None, levels: None };
    const ON: Change = Change { on: Some(true), rate: None, levels: None };

    fn rate(rate: u64) -> Change {
        Change { rate: Some(rate), ..Change::default() }
    }

    fn osd(pid: u32) -> Subject {
        Subject { uid: 1000, pid, born: 5, comm: "osd".into() }
    }

    fn label(label: &str) -> Target {
        Target::Label(label.into())
    }

    fn pid(pid: u32, says: Change) -> Rule {
        Rule::about_process(&osd(pid), says)
    }

    fn many(target: Target, says: Change) -> Rule {
        Rule::about_many(target, Reach::All, says)
    }

    #[test]
    fn the_narrowest_rule_wins_for_each_setting_whatever_came_first() {
        let mut rules = Rules::default();
        let mut made = |rule| {
            rules.change(rule, Reach::All).unwrap();
            [7, 8].map(|pid| rules.in_force(&osd(pid))).map(|in_force| (in_force.on, in_force.rate))
        };
        made(pid(7, rate(100)));
        made(many(Target::All, OFF));
        assert_eq!(made(many(Target::All, rate(9))), [(false, 100), (false, 9)]);
        made(many(label("mon"), rate(1)));
        assert_eq!(made(many(label("osd"), ON)), [(true, 100), (true, 9)]);
        assert_eq!(made(pid(7, OFF)), [(false, 100), (true, 9)]);
        assert_eq!(rules.all().len(), 4);
    }

    #[test]
    fn off_blocks_all_levels_and_on_restores_the_mask() {
        let mut rules = Rules::default();
        let levels = Levels::try_from(vec!["err".to_owned()]).unwrap();
        let only_errors = Change { levels: Some(levels), ..Change::default() };
        rules.change(pid(7, only_errors), Reach::All).unwrap();
        rules.change(pid(7, OFF), Reach::All).unwrap();
        assert_eq!(rules.in_force(&osd(7)).blocked_levels(), 0xff);
        rules.change(pid(7, ON), Reach::All).unwrap();
        assert_eq!(rules.in_force(&osd(7)).blocked_levels(), 0b1111_0111);
        assert_eq!(rules.in_force(&osd(8)).blocked_levels(), 0);
    }

    #[test]
    fn a_users_rule_covers_his_programs_and_beats_the_same_for_all() {
        let mut rules = Rules::default();
        let user = Reach::Own(1000);
        rules.change(Rule::about_many(Target::All, user, OFF), user).unwrap();
        rules.change(many(Target::All, ON), Reach::All).unwrap();
        let others = Subject { uid: 1001, ..osd(7) };
        assert_eq!((rules.in_force(&osd(7)).on, rules.in_force(&others).on), (false, true));
        rules.change(many(label("osd"), ON), Reach::All).unwrap();
        assert!(rules.in_force(&osd(7)).on);
    }

    #[test]
    fn a_reset_removes_only_the_rules_within_reach() {
        let mut rules = Rules::default();
        let user = Reach::Own(1000);
        let make = |rules: &mut Rules| {
            rules.change(many(Target::All, OFF), Reach::All).unwrap();
            rules.change(Rule::about_many(Target::All, user, OFF), user).unwrap();
            rules.change(pid(7, OFF), Reach::All).unwrap();
        };
        make(&mut rules);
        assert_eq!(rules.reset(None, Reach::Own(1001)), 0);
        assert_eq!(rules.reset(Some(&Target::All), user), 1);
        assert_eq!(rules.reset(None, user), 1);
        make(&mut rules);
        assert_eq!(rules.reset(Some(&Target::Pid(7)), Reach::All), 1);
        assert_eq!(rules.reset(Some(&Target::All), Reach::All), 2);
        assert_eq!(rules, Rules::default());
    }

    #[test]
    fn a_process_rule_does_not_apply_after_pid_reuse() {
        let mut rules = Rules::default();
        rules.change(pid(7, OFF), Reach::All).unwrap();
        let next = Subject { born: 6, ..osd(7) };
        assert!(rules.in_force(&next).on);
        assert!(!rules.forget_dead(|pid, born| (pid, born) == (7, 5)));
        assert!(rules.forget_dead(|pid, born| (pid, born) == (7, 6)));
        assert_eq!(rules, Rules::default());
    }

    #[test]
    fn rules_are_limited_per_user_and_in_total() {
        let mut rules = Rules::default();
        let mut make = |reach, number: usize| {
            rules.change(Rule::about_many(label(&number.to_string()), reach, OFF), reach)
        };
        for number in 0..MAX_RULES_OF_USER {
            make(Reach::Own(1), number).unwrap();
        }
        assert_eq!(make(Reach::Own(1), MAX_RULES), Err(Full(MAX_RULES_OF_USER)));
        assert_eq!(make(Reach::Own(1), 0), Ok(()));
        for number in MAX_RULES_OF_USER..MAX_RULES {
            make(Reach::All, number).unwrap();
        }
        assert_eq!(make(Reach::All, MAX_RULES), Err(Full(MAX_RULES)));
    }

    #[test]
    fn user_rules_cannot_prevent_switching_everything_off() {
        let mut rules = Rules::default();
        let by_users = (0..MAX_RULES).filter(|number| {
            let user = Reach::Own((number / MAX_RULES_OF_USER) as u32);
            rules.change(Rule::about_many(label(&number.to_string()), user, OFF), user).is_ok()
        });
        assert_eq!(by_users.count(), MAX_RULES - RULES_FOR_ALL);
        assert_eq!(rules.change(many(Target::All, OFF), Reach::All), Ok(()));
        assert!(!rules.in_force(&osd(7)).on);
    }
}
