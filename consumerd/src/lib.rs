//! The node's daemon: drains rings, joins spans, ships them.
