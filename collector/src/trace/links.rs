//! Which service called which, and how often (Zipkin's `DependencyLinker`).

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde::Serialize;

use crate::convert::Texts;
use crate::model::{Kind, Span};

use super::tree::{Node, Tree};

/// Calls from one service to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DependencyLink {
    /// The calling service.
    pub parent: String,
    /// The called service.
    pub child: String,
    /// How many calls there were.
    pub call_count: u64,
    /// How many of them failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub error_count: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Links that were added up, in little memory, in the order in which they were first seen.
#[derive(Debug, PartialEq, Eq)]
pub struct Links {
    names: Box<[Box<str>]>,
    calls: Box<[Calls]>,
}

/// Calls from one service to another; `parent` and `child` are places in the list of names.
#[derive(Debug, PartialEq, Eq)]
struct Calls {
    parent: u32,
    child: u32,
    count: u64,
    errors: u64,
}

impl Links {
    /// About how many bytes of memory they take.
    pub fn bytes(&self) -> usize {
        let of_name = |name: &str| size_of::<Box<str>>() + name.len();
        let names: usize = self.names.iter().map(|name| of_name(name)).sum();
        size_of::<Links>() + names + size_of_val(&*self.calls)
    }
}

/// Adds up the links of many traces.
#[derive(Debug, Default)]
pub struct Linker {
    names: Vec<Box<str>>,
    by_name: HashMap<Box<str>, u32>,
    calls: Vec<Calls>,
    /// The places in `calls`, by the places of both names.
    places: HashMap<(u32, u32), usize, RandomState>,
}

/// The key of the tag that says that a span failed.
const FAILED: &str = "error";

impl Linker {
    /// The texts of spans that links need.
    pub const TEXTS: Texts<'static> = Texts::Only(&[FAILED]);

    /// Counts the links of one trace.
    pub fn add_trace(&mut self, spans: Vec<Span>) {
        let tree = Tree::build(spans);
        for (span, node) in tree.breadth_first() {
            self.add_span(&tree, span, node);
        }
    }

    /// Adds links that were added up before.
    pub fn add_links(&mut self, links: &Links) {
        let names = Vec::from_iter(links.names.iter().map(|name| self.name(name)));
        for Calls { parent, child, count, errors } in &links.calls {
            let pair = (names[*parent as usize], names[*child as usize]);
            self.add_calls(pair, *count, *errors);
        }
    }

    /// The links added up so far, for another linker to add.
    pub fn into_sum(self) -> Links {
        Links { names: self.names.into(), calls: self.calls.into() }
    }

    /// The links, in the order in which they were first seen.
    pub fn links(self) -> Vec<DependencyLink> {
        let name = |place: u32| self.names[place as usize].to_string();
        let link = |calls: &Calls| DependencyLink {
            parent: name(calls.parent),
            child: name(calls.child),
            call_count: calls.count,
            error_count: calls.errors,
        };
        self.calls.iter().map(link).collect()
    }

    fn add_span(&mut self, tree: &Tree, span: &Span, node: &Node) {
        // The server's own name is better than the name that its client has for it.
        if span.kind == Some(Kind::Client) && node.has_children() {
            return;
        }
        let (local, remote) = (span.local_service(), span.remote_service());
        let error = span.tags.contains_key(FAILED);
        match span.kind {
            Some(Kind::Producer) => self.add_both(local, remote, error),
            Some(Kind::Consumer) => self.add_both(remote, local, error),
            Some(Kind::Client) => self.add_call(tree, span, node, (local, remote), false),
            Some(Kind::Server) if std::ptr::eq(node, tree.root()) && remote.is_none() => {}
            Some(Kind::Server) => self.add_call(tree, span, node, (remote, local), true),
            // Both sides are known, so it is a call.
            None if local.is_some() && remote.is_some() => {
                self.add_call(tree, span, node, (local, remote), false);
            }
            None => {}
        }
    }

    fn add_call(
        &mut self,
        tree: &Tree,
        span: &Span,
        node: &Node,
        (mut parent, child): (Option<&str>, Option<&str>),
        is_server: bool,
    ) {
        let mut error = span.tags.contains_key(FAILED);
        if let Some((caller, name)) =
            tree.caller(node).and_then(|caller| Some((caller, caller.local_service()?)))
        {
            // Some tracers put the server's name into the client's own endpoint; the call to that "client" has no span.
            if let Some(local) = span.local_service().filter(|&local| !is_server && local != name) {
                self.add(name, local, false);
            }
            if is_server || parent.is_none() {
                parent = Some(name);
            }
            error |= caller.kind == Some(Kind::Client)
                && span.parent_id == Some(caller.id)
                && caller.tags.contains_key(FAILED);
        }
        self.add_both(parent, child, error);
    }

    fn add_both(&mut self, parent: Option<&str>, child: Option<&str>, error: bool) {
        if let (Some(parent), Some(child)) = (parent, child) {
            self.add(parent, child, error);
        }
    }

    fn add(&mut self, parent: &str, child: &str, error: bool) {
        let pair = (self.name(parent), self.name(child));
        self.add_calls(pair, 1, u64::from(error));
    }

    fn add_calls(&mut self, pair: (u32, u32), count: u64, errors: u64) {
        let place = *self.places.entry(pair).or_insert_with(|| {
            self.calls.push(Calls { parent: pair.0, child: pair.1, count: 0, errors: 0 });
            self.calls.len() - 1
        });
        let calls = &mut self.calls[place];
        calls.count += count;
        calls.errors += errors;
    }

    /// The place of a service's name.
    fn name(&mut self, name: &str) -> u32 {
        if let Some(&place) = self.by_name.get(name) {
            return place;
        }
        let place = self.names.len() as u32;
        self.names.push(name.into());
        self.by_name.insert(name.into(), place);
        place
    }
}
