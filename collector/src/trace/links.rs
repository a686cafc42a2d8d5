//! Which service called which, and how often (Zipkin's `DependencyLinker`).

use std::collections::HashMap;

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
    /// How many calls.
    pub call_count: u64,
    /// How many of them failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub error_count: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Adds up the links of many traces.
#[derive(Debug, Default)]
pub struct Linker {
    links: Vec<DependencyLink>,
    /// By the calling service, then by the called one.
    places: HashMap<String, HashMap<String, usize>>,
}

/// The key of the tag that says of a span that it failed.
const FAILED: &str = "error";

impl Linker {
    /// What links need to know of the texts of spans.
    pub const TEXTS: Texts<'static> = Texts::Only(&[FAILED]);

    /// Counts the links of one trace.
    pub fn add_trace(&mut self, spans: Vec<Span>) {
        let tree = Tree::build(spans);
        for (span, node) in tree.breadth_first() {
            self.add_span(&tree, span, node);
        }
    }

    /// The links, in the order in which they were first seen.
    pub fn links(self) -> Vec<DependencyLink> {
        self.links
    }

    fn add_span(&mut self, tree: &Tree, span: &Span, node: &Node) {
        // The server's name is better than the one that its client has for it.
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
            // Both sides are known: somebody called.
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
            // Some name the server in the client's own endpoint: the call to that "client" was not seen itself.
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
        let known = self.places.get(parent).and_then(|children| children.get(child)).copied();
        let place = known.unwrap_or_else(|| {
            let (parent, child) = (parent.to_owned(), child.to_owned());
            self.places.entry(parent.clone()).or_default().insert(child.clone(), self.links.len());
            self.links.push(DependencyLink { parent, child, call_count: 0, error_count: 0 });
            self.links.len() - 1
        });
        let link = &mut self.links[place];
        link.call_count += 1;
        link.error_count += u64::from(error);
    }
}
