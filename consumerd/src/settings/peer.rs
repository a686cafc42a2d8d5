//! Who may set which programs: it depends on the client's user, as the kernel reports it (SO_PEERCRED).

/// The programs that a client may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Every program: for root, and for the daemon's own user.
    All,
    /// The programs of one user.
    Own(u32),
}

impl Reach {
    /// The reach of a client's user, given the daemon's user.
    pub fn of(peer_uid: u32, daemon_uid: u32) -> Reach {
        if peer_uid == 0 || peer_uid == daemon_uid { Reach::All } else { Reach::Own(peer_uid) }
    }

    /// Whether programs of this user may be set.
    pub fn holds(self, uid: u32) -> bool {
        self.only().is_none_or(|own| own == uid)
    }

    /// Whether a rule may be changed that is about programs of this user, or, with `None`, of every user.
    pub fn holds_rule(self, uid: Option<u32>) -> bool {
        match uid {
            Some(uid) => self.holds(uid),
            None => self == Reach::All,
        }
    }

    /// The one user whose programs may be set.
    pub fn only(self) -> Option<u32> {
        match self {
            Reach::All => None,
            Reach::Own(uid) => Some(uid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_daemons_user_reach_all_and_others_their_own() {
        let (root, daemon, user, other) = (0, 990, 1000, 1001);
        for may_all in [Reach::of(root, daemon), Reach::of(daemon, daemon), Reach::of(root, root)] {
            assert_eq!(may_all, Reach::All);
            assert!(may_all.holds(user) && may_all.holds_rule(None) && may_all.holds_rule(Some(user)));
        }
        for of_user in [Reach::of(user, daemon), Reach::of(user, root)] {
            assert!(of_user.holds(user) && of_user.holds_rule(Some(user)));
            assert!(!of_user.holds(other) && !of_user.holds(root) && !of_user.holds(daemon));
            assert!(!of_user.holds_rule(None) && !of_user.holds_rule(Some(other)));
        }
    }
}
