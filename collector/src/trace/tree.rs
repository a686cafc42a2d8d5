//! Which span caused which (Zipkin's `SpanNode`).
//!
//! A client and its server may share one id, and several servers may answer one client. So a shared span is identified by
//! id and endpoint, and its parent is the span with the same id. Any other span prefers, among the spans with its parent's
//! id, the shared one at its own endpoint.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

use crate::model::{Endpoint, Span, SpanId};

use super::cleanup::merge_for_reading;

/// The spans of a trace as a tree. The root node has no span if the trace's root span is missing.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
}

/// A span in its place.
#[derive(Debug, Default)]
pub struct Node {
    span: Option<Span>,
    caller: Option<usize>,
    children: Vec<usize>,
}

impl Node {
    /// The span; none in a root that stands for a missing span.
    pub fn span(&self) -> Option<&Span> {
        self.span.as_ref()
    }

    /// Whether this span caused others.
    pub fn has_children(&self) -> bool {
        !self.children.is_empty()
    }
}

/// How a span is found: by id and, if shared, by endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    id: SpanId,
    shared_at: Option<EndpointNumber>,
}

impl Key {
    fn plain(id: SpanId) -> Key {
        Key { id, shared_at: None }
    }

    fn shared(id: SpanId, at: EndpointNumber) -> Key {
        Key { id, shared_at: Some(at) }
    }
}

/// The number of an endpoint of a shared span; few traces have such spans.
type EndpointNumber = usize;

const ROOT: usize = 0;

impl Tree {
    /// Builds the tree of the spans of one trace. If no rule can tell spans apart, the last of them gets the place.
    pub fn build(spans: Vec<Span>) -> Tree {
        let spans = merge_for_reading(spans);
        let mut places = Places::of(spans.len());
        for span in &spans {
            let caller = if span.shared { Some(span.id) } else { span.parent_id };
            let key = places.key_of(span);
            places.set_parent(key, caller.map(Key::plain));
        }
        let mut nodes = Vec::with_capacity(1 + spans.len());
        nodes.push(Node::default());
        for span in spans {
            places.put(span, &mut nodes);
        }
        let mut tree = Tree { nodes };
        for (child, parent) in places.edges() {
            tree.nodes[parent].children.push(child);
        }
        tree.sort_children();
        tree.find_callers();
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

    /// The nearest span above a node that has a kind, which is the caller.
    pub fn caller(&self, node: &Node) -> Option<&Span> {
        self.nodes[node.caller?].span()
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

    /// Finds the caller of each span, level by level, so that a span far below its caller need not search through all levels
    /// between.
    fn find_callers(&mut self) {
        let mut queue = VecDeque::from([ROOT]);
        while let Some(parent) = queue.pop_front() {
            let has_kind = self.nodes[parent].span().is_some_and(|span| span.kind.is_some());
            let caller = if has_kind { Some(parent) } else { self.nodes[parent].caller };
            for at in 0..self.nodes[parent].children.len() {
                let child = self.nodes[parent].children[at];
                self.nodes[child].caller = caller;
                queue.push_back(child);
            }
        }
    }

    fn sort_children(&mut self) {
        let starts: Vec<i64> =
            self.nodes.iter().map(|node| node.span().and_then(|span| span.timestamp).unwrap_or(0)).collect();
        for node in &mut self.nodes {
            node.children.sort_by_key(|&child| starts[child]);
        }
    }
}

/// The key of each span's parent, in the order in which the spans came, and the node of each key.
#[derive(Debug)]
struct Places {
    parents: Vec<(Key, Option<Key>)>,
    row_of_key: HashMap<Key, usize, RandomState>,
    node_of_key: HashMap<Key, usize, RandomState>,
    /// The endpoints of shared spans with their numbers; an unknown endpoint has a number too.
    endpoints: HashMap<Option<Endpoint>, EndpointNumber>,
}

impl Places {
    /// Empty places with room for so many spans.
    fn of(spans: usize) -> Places {
        Places {
            parents: Vec::with_capacity(spans),
            row_of_key: HashMap::with_capacity_and_hasher(spans, RandomState::default()),
            node_of_key: HashMap::with_capacity_and_hasher(spans, RandomState::default()),
            endpoints: HashMap::new(),
        }
    }

    fn key_of(&mut self, span: &Span) -> Key {
        if span.shared { self.shared(span.id, &span.local_endpoint) } else { Key::plain(span.id) }
    }

    fn shared(&mut self, id: SpanId, endpoint: &Option<Endpoint>) -> Key {
        let known = self.endpoints.get(endpoint).copied();
        let number = known.unwrap_or_else(|| {
            let next = self.endpoints.len();
            self.endpoints.insert(endpoint.clone(), next);
            next
        });
        Key::shared(id, number)
    }

    fn set_parent(&mut self, key: Key, parent: Option<Key>) {
        let row = *self.row_of_key.entry(key).or_insert(self.parents.len());
        match self.parents.get_mut(row) {
            Some((_, known)) => *known = parent,
            None => self.parents.push((key, parent)),
        }
    }

    /// Makes the first span without a parent the root, and any other span a node.
    fn put(&mut self, span: Span, nodes: &mut Vec<Node>) {
        let is_root = !span.shared && span.parent_id.is_none() && nodes[ROOT].span.is_none();
        if is_root {
            self.row_of_key.remove(&Key::plain(span.id));
            nodes[ROOT].span = Some(span);
            return;
        }
        self.prefer_parent_beside(&span);
        let key = self.key_of(&span);
        self.node_of_key.insert(key, nodes.len());
        if span.shared {
            // Spans of work inside the server may not know the server's endpoint.
            let nowhere = self.shared(span.id, &None);
            self.node_of_key.insert(nowhere, nodes.len());
        }
        nodes.push(Node { span: Some(span), ..Node::default() });
    }

    /// If a server's span is shared, work inside the server belongs under the server, not under the client with the same id.
    fn prefer_parent_beside(&mut self, span: &Span) {
        let Some(parent) = span.parent_id.filter(|_| !span.shared) else { return };
        let Some(&number) = self.endpoints.get(&span.local_endpoint) else { return };
        let beside = Key::shared(parent, number);
        if self.row_of_key.contains_key(&beside) {
            self.set_parent(Key::plain(span.id), Some(beside));
        }
    }

    /// Child and parent of every edge. A span whose parent is missing is a child of the root. Spans that are each other's
    /// ancestors cannot be reached from the root.
    fn edges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.parents.iter().enumerate().filter_map(|(row, (key, parent))| {
            let live = self.row_of_key.get(key) == Some(&row);
            let child = *self.node_of_key.get(key).filter(|_| live)?;
            let parent = parent.as_ref().and_then(|parent| self.node_of_key.get(parent));
            Some((child, parent.copied().unwrap_or(ROOT)))
        })
    }
}
