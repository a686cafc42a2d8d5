//! Per-CPU rings in shared memory: producer, consumer, clock.
