//! Who caused whom (Zipkin's `SpanNode`).
//!
//! A client and its server may share one id, and several servers may answer one client. So a shared span is known by
//! id and endpoint, its parent is the span of the same id; any other span prefers, of the spans with its parent's id,
//! the shared one at its own endpoint.

use std::collections::{HashMap, VecDeque};

use crate::model::{Endpoint, Span, SpanId};

use super::cleanup::merge_for_reading;

/// The spans of a trace as a tree. The root holds no span if the trace has lost its own.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
}

/// A span in its place.
#[derive(Debug, Default)]
pub struct Node {
    span: Option<Span>,
    parent: Option<usize>,
    children: Vec<usize>,
}

impl Node {
    /// The span; none in a root that stands for a lost one.
    pub fn span(&self) -> Option<&Span> {
        self.span.as_ref()
    }

    /// Whether anything was caused by this span.
    pub fn has_children(&self) -> bool {
        !self.children.is_empty()
    }
}

/// How a span is found: by id and, if shared, by endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    id: SpanId,
    shared_at: Option<Option<Endpoint>>,
}

impl Key {
    fn plain(id: SpanId) -> Key {
        Key { id, shared_at: None }
    }

    fn shared(id: SpanId, endpoint: Option<&Endpoint>) -> Key {
        Key { id, shared_at: Some(endpoint.cloned()) }
    }

    fn of(span: &Span) -> Key {
        if span.shared { Key::shared(span.id, span.local_endpoint.as_ref()) } else { Key::plain(span.id) }
    }
}

const ROOT: usize = 0;

impl Tree {
    /// Builds the tree of the spans of one trace.
    pub fn build(spans: Vec<Span>) -> Tree {
        let mut spans = merge_for_reading(spans);
        let mut nodes = vec![Node::default()];
        if let Some(root) = spans.iter().position(|span| !span.shared && span.parent_id.is_none()) {
            nodes[ROOT].span = Some(spans.remove(root));
        }
        nodes.extend(spans.into_iter().map(|span| Node { span: Some(span), ..Node::default() }));
        let parents = find_parents(&nodes);
        let mut tree = Tree { nodes };
        for (child, parent) in parents {
            tree.nodes[child].parent = Some(parent);
            tree.nodes[parent].children.push(child);
        }
        tree.sort_children();
        tree
    }

    /// The node of the root.
    pub fn root(&self) -> &Node {
        &self.nodes[ROOT]
    }

    /// The children of a node, earliest first.
    pub fn children<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = &'a Node> {
        node.children.iter().map(|&child| &self.nodes[child])
    }

    /// The nodes above a node, nearest first.
    pub fn ancestors<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = &'a Node> {
        std::iter::successors(self.parent(node), |node| self.parent(node)).take(self.nodes.len())
    }

    /// All spans with their nodes, level by level.
    pub fn breadth_first(&self) -> impl Iterator<Item = (&Span, &Node)> {
        let mut queue = VecDeque::from([self.root()]);
        std::iter::from_fn(move || {
            let node = queue.pop_front()?;
            queue.extend(self.children(node));
            Some(node)
        })
        .filter_map(|node| Some((node.span()?, node)))
    }

    fn parent(&self, node: &Node) -> Option<&Node> {
        node.parent.map(|parent| &self.nodes[parent])
    }

    fn sort_children(&mut self) {
        let starts: Vec<i64> =
            self.nodes.iter().map(|node| node.span().and_then(|span| span.timestamp).unwrap_or(0)).collect();
        for node in &mut self.nodes {
            node.children.sort_by_key(|&child| starts[child]);
        }
    }
}

/// The parent of each node but the root. Whoever has lost its parent, or is its own ancestor, hangs from the root.
fn find_parents(nodes: &[Node]) -> Vec<(usize, usize)> {
    let mut places = HashMap::new();
    for (index, span) in nodes.iter().enumerate().filter_map(|(index, node)| Some((index, node.span()?))) {
        places.entry(Key::of(span)).or_insert(index);
    }
    let mut parents: Vec<usize> =
        nodes.iter().map(|node| node.span().map_or(ROOT, |s| parent_of(s, &places))).collect();
    break_cycles(&mut parents);
    parents.into_iter().enumerate().skip(1).collect()
}

fn parent_of(span: &Span, places: &HashMap<Key, usize>) -> usize {
    let plain = |id| places.get(&Key::plain(id)).copied();
    let found = match (span.shared, span.parent_id) {
        (true, parent) => plain(span.id).or_else(|| plain(parent?)),
        (false, None) => None,
        (false, Some(parent)) => {
            let beside = places.get(&Key::shared(parent, span.local_endpoint.as_ref())).copied();
            beside.or_else(|| plain(parent)).or_else(|| places.get(&Key::shared(parent, None)).copied())
        }
    };
    found.unwrap_or(ROOT)
}

/// Hostile or broken spans may cause each other: the first of such a ring is cut off and hangs from the root.
fn break_cycles(parents: &mut [usize]) {
    let mut settled = vec![false; parents.len()];
    settled[ROOT] = true;
    for start in 1..parents.len() {
        let mut path = Vec::new();
        let mut on_path = std::collections::HashSet::new();
        let mut at = start;
        while !settled[at] && on_path.insert(at) {
            path.push(at);
            at = parents[at];
        }
        if !settled[at] {
            parents[at] = ROOT;
        }
        path.into_iter().for_each(|node| settled[node] = true);
    }
}
