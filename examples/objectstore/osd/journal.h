/*
 * journal.h - makes writes durable: entries with a CRC each, appended with O_DSYNC.
 *
 *   DIR/journal/segment-NNNNNNNNNNNNNNNN   named by the sequence number of its first entry
 *   entry: magic, CRC of header and name, sequence, version, op, pg, lengths, CRC of data | name | data | 0..7
 *
 * A segment is removed once it is full (or a checkpoint asked for it), all its entries are applied to the store,
 * and the store is on the disk. At start every entry that is still there is applied again, in order; that is
 * harmless, because an object is only ever replaced by a newer version.
 */
#ifndef OBJSTORE_JOURNAL_H
#define OBJSTORE_JOURNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "queue.h"

#define JOURNAL_MAX_SEGMENTS 8
#define JOURNAL_MIN_SEGMENT_BYTES (8u << 20)

/* One write; the data it points to must stay until it has been applied. op 0: nothing is written, but the hooks run in its
 * turn. */
struct journal_entry {
	struct link link;
	uint16_t op;
	uint16_t pg;
	uint64_t version;
	const char *name;
	uint16_t name_len;
	const unsigned char *data;
	uint32_t data_len;
	uint32_t data_crc;
	bool rotate;      /* a checkpoint: go on in a new segment */
	uint64_t segment; /* id of the segment with this entry */
};

struct journal_hooks {
	void *owner;
	/* At start, for each entry of an earlier run. 0 or -errno. */
	int (*replay)(void *owner, const struct journal_entry *entry);
	/* Makes durable whatever has been applied. 0 or -errno. */
	int (*sync)(void *owner);
	/* Before and after the write, in the journal's thread; at committed() the entry is durable. */
	void (*starting)(void *owner, struct journal_entry *entry);
	void (*committed)(void *owner, struct journal_entry *entry);
};

struct segment {
	uint64_t id; /* sequence number of its first entry */
	unsigned unapplied;
};

struct journal {
	char dir[512];
	struct journal_hooks hooks;
	unsigned delay_us;
	size_t segment_bytes;
	struct queue queue;
	pthread_t writer, trimmer;

	/* used only by the writing thread */
	int fd;
	size_t written;
	uint64_t next_seq;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t changed;
	struct segment segments[JOURNAL_MAX_SEGMENTS]; /* oldest first; the last is being written */
	unsigned segment_count;
	bool closing;
	uint64_t replayed;
};

/* Replays what an earlier run left, removes it, starts the threads. 0 or -errno; -EUCLEAN: damaged. */
int journal_open(struct journal *journal, const char *dir, size_t segment_bytes, unsigned delay_us,
		 const struct journal_hooks *hooks);
/* Queues the entry; `queued` as in queue_push. */
void journal_submit(struct journal *journal, struct journal_entry *entry, void (*queued)(struct link *));
/* The entry has been applied to the store; call once per committed entry, in any order. */
void journal_applied(struct journal *journal, const struct journal_entry *entry);
/* Returns once everything submitted before the call is applied, durable in the store and removed from the journal. */
void journal_checkpoint(struct journal *journal);
/* Checkpoints and stops. Nothing may be submitted any more. */
void journal_close(struct journal *journal);

#endif
