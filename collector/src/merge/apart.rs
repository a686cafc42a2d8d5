//! Decides which v1 pieces of one span id belong to different spans.
//!
//! A program that passes on a span's id without making a child span makes others use the id for calls of their own: two servers
//! that one client asked, or both ends of a call within one service. Zipkin converts each piece alone. So pieces that know a
//! side of a call from beginning to end, and contradict each other, are not joined. They contradict each other if they have the
//! same side at different places or times, or both sides in one service; one joined span would have the name and tags of only
//! one of these.

use std::collections::{HashMap, HashSet};

use blkin_thrift::{Endpoint, Span as V1Span};

use super::{first_moment, home_of};
use crate::convert::service_of;

/// A side of a call from its beginning to its end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Side {
    is_client: bool,
    host: Endpoint,
    begin: i64,
    end: i64,
}

impl Side {
    fn contradicts(&self, other: &Side) -> bool {
        if self.is_client == other.is_client {
            self != other
        } else {
            service_of(Some(&self.host)) == service_of(Some(&other.host))
        }
    }
}

/// The sides that a piece knows whole.
fn sides_of(piece: &V1Span) -> Vec<Side> {
    let first = |value: &str| piece.annotations.iter().find(|annotation| annotation.value == value);
    let side = |is_client, begin, end| {
        let (begin, end) = (first(begin)?, first(end)?);
        let host = begin.host.clone().filter(|host| service_of(Some(host)).is_some())?;
        Some(Side { is_client, host, begin: begin.timestamp, end: end.timestamp })
    };
    [side(true, "cs", "cr"), side(false, "sr", "ss")].into_iter().flatten().collect()
}

/// Groups the pieces by span, the earliest first. The first group is a call, of which both sides may be known. A piece that
/// contradicts it begins a group of its own. Pieces that know no side whole join the group of the same host, or else of the same
/// service, or else the first.
pub(super) fn in_groups(pieces: Vec<V1Span>) -> Vec<Vec<V1Span>> {
    let mut groups: Vec<Vec<V1Span>> = Vec::new();
    let mut group_of: HashMap<Side, usize> = HashMap::new();
    // A set, because very many pieces may have the same sides.
    let mut call: HashSet<Side> = HashSet::new();
    let mut rest = Vec::new();
    for piece in pieces {
        let sides = sides_of(&piece);
        if sides.is_empty() {
            rest.push(piece);
            continue;
        }
        let is_of_call = !sides.iter().any(|side| call.iter().any(|other| side.contradicts(other)));
        let known = sides.iter().find_map(|side| group_of.get(side).copied());
        let group = known.unwrap_or(if is_of_call { 0 } else { groups.len() });
        if group == 0 {
            call.extend(sides.iter().cloned());
        }
        sides.into_iter().for_each(|side| _ = group_of.entry(side).or_insert(group));
        put(&mut groups, group, piece);
    }
    let of_host = places(&group_of, |host| Some(host.clone()));
    let of_service = places(&group_of, |host| service_of(Some(host)));
    for piece in rest {
        let home = home_of(&piece);
        let same_host = home.and_then(|home| of_host.get(home));
        let same = same_host.or_else(|| of_service.get(&service_of(home)?));
        put(&mut groups, same.copied().unwrap_or(0), piece);
    }
    groups.iter_mut().for_each(|group| group.sort_by_key(first_moment));
    groups
}

fn put(groups: &mut Vec<Vec<V1Span>>, group: usize, piece: V1Span) {
    match groups.get_mut(group) {
        Some(pieces) => pieces.push(piece),
        None => groups.push(vec![piece]),
    }
}

/// The first group of each key.
fn places<Key: std::hash::Hash + Eq>(
    group_of: &HashMap<Side, usize>,
    key: impl Fn(&Endpoint) -> Option<Key>,
) -> HashMap<Key, usize> {
    let mut places = HashMap::new();
    for (side, &group) in group_of {
        if let Some(key) = key(&side.host) {
            places.entry(key).and_modify(|first: &mut usize| *first = group.min(*first)).or_insert(group);
        }
    }
    places
}
