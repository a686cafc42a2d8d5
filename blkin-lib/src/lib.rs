//! Request tracing for storage daemons: what programs link.
