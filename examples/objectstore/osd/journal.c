/*
 * journal.c - one thread writes, in batches (one O_DSYNC write for all entries that wait), one thread trims.
 *
 * A failed journal write ends the process: it could acknowledge nothing any more, and the other replica serves without it.
 */
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "atomic_file.h"
#include "journal_format.h"
#include "journal_replay.h"
#include "log.h"

#define BATCH_ENTRIES 64
#define BATCH_BYTES (4u << 20)

struct batch {
	struct journal_entry *entries[BATCH_ENTRIES];
	unsigned char headers[BATCH_ENTRIES][ENTRY_HEADER_BYTES];
	struct iovec iov[BATCH_ENTRIES * 4];
	unsigned count;
	int iov_count;
	size_t bytes;
};

static void open_segment(struct journal *journal)
{
	char path[600];

	segment_path(journal, journal->next_seq, path, sizeof path);
	journal->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_DSYNC | O_CLOEXEC, 0644);
	if (journal->fd < 0)
		die("failed to create %s: %s", path, strerror(errno));
	/* Reserved space saves each write the allocation and some metadata; without it the journal still works. */
	if (fallocate(journal->fd, 0, 0, (off_t)journal->segment_bytes) != 0 && errno == ENOSPC)
		die("failed to reserve %zu bytes for %s: the disk is full", journal->segment_bytes, path);
	if (sync_parent(path) != 0)
		die("failed to make %s durable", path);
	journal->written = 0;
}

/* Called by the writer, and once at start. */
static void next_segment(struct journal *journal)
{
	if (journal->fd >= 0)
		close(journal->fd);
	pthread_mutex_lock(&journal->lock);
	while (journal->segment_count == JOURNAL_MAX_SEGMENTS)
		pthread_cond_wait(&journal->changed, &journal->lock);
	open_segment(journal);
	journal->segments[journal->segment_count++] = (struct segment){.id = journal->next_seq};
	pthread_cond_broadcast(&journal->changed);
	pthread_mutex_unlock(&journal->lock);
}

/* Starts a new segment for a checkpoint: mark tells it the first segment that it need not wait for. */
static void rotate(struct journal *journal, struct journal_entry *mark)
{
	if (journal->written > 0) /* an empty segment would be followed by one of the same name */
		next_segment(journal);
	pthread_mutex_lock(&journal->lock);
	mark->segment = journal->segments[journal->segment_count - 1].id;
	pthread_cond_broadcast(&journal->changed);
	pthread_mutex_unlock(&journal->lock);
}

static void add_iov(struct batch *batch, const void *base, size_t len)
{
	if (len > 0)
		batch->iov[batch->iov_count++] = (struct iovec){(void *)(uintptr_t)base, len};
}

static void add_entry(struct batch *batch, struct journal_entry *entry, uint64_t seq)
{
	static const unsigned char zeros[8];
	size_t bytes = entry_bytes(entry);
	unsigned char *header = batch->headers[batch->count];

	entry_encode(entry, seq, header);
	add_iov(batch, header, ENTRY_HEADER_BYTES);
	add_iov(batch, entry->name, entry->name_len);
	add_iov(batch, entry->data, entry->data_len);
	add_iov(batch, zeros, bytes - ENTRY_HEADER_BYTES - entry->name_len - entry->data_len);
	batch->bytes += bytes;
}

static void delay(unsigned us)
{
	struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};

	while (us > 0 && nanosleep(&t, &t) != 0 && errno == EINTR)
		;
}

static void write_batch(struct journal *journal, struct batch *batch)
{
	ssize_t n;

	if (batch->bytes == 0)
		return;
	delay(journal->delay_us);
	n = pwritev(journal->fd, batch->iov, batch->iov_count, (off_t)journal->written);
	if (n != (ssize_t)batch->bytes)
		die("failed to write %zu bytes to the journal: %s", batch->bytes, n < 0 ? strerror(errno) : "disk full");
	journal->written += batch->bytes;
}

static void flush(struct journal *journal, struct batch *batch)
{
	if (batch->count == 0)
		return;
	pthread_mutex_lock(&journal->lock);
	for (unsigned n = 0; n < batch->count; n++) {
		batch->entries[n]->segment = journal->segments[journal->segment_count - 1].id;
		journal->segments[journal->segment_count - 1].unapplied++;
	}
	pthread_mutex_unlock(&journal->lock);
	write_batch(journal, batch);
	for (unsigned n = 0; n < batch->count; n++)
		journal->hooks.committed(journal->hooks.owner, batch->entries[n]);
	batch->count = 0;
	batch->iov_count = 0;
	batch->bytes = 0;
}

static void take(struct journal *journal, struct batch *batch, struct journal_entry *entry)
{
	size_t bytes = entry->op ? entry_bytes(entry) : 0;

	if (batch->count == BATCH_ENTRIES || batch->bytes + bytes > BATCH_BYTES || entry->rotate)
		flush(journal, batch);
	if (entry->rotate) {
		rotate(journal, entry);
		return;
	}
	if (journal->written + batch->bytes + bytes > journal->segment_bytes) {
		flush(journal, batch);
		next_segment(journal);
	}
	if (entry->op) {
		journal->hooks.starting(journal->hooks.owner, entry);
		add_entry(batch, entry, journal->next_seq++);
	}
	batch->entries[batch->count++] = entry;
}

static void *write_entries(void *arg)
{
	struct journal *journal = arg;
	struct batch batch = {.count = 0};

	for (;;) {
		struct list waiting = queue_pop_all(&journal->queue);
		struct link *link;
		if (!waiting.first)
			return NULL;
		while ((link = list_pop(&waiting)) != NULL)
			take(journal, &batch, ITEM_OF(link, struct journal_entry, link));
		flush(journal, &batch);
	}
}

static bool oldest_is_done(const struct journal *journal)
{
	return journal->segment_count > 1 && journal->segments[0].unapplied == 0;
}

/* Called with the lock held; releases it during disk I/O. */
static void trim_oldest(struct journal *journal)
{
	char path[600];
	int rc;

	segment_path(journal, journal->segments[0].id, path, sizeof path);
	pthread_mutex_unlock(&journal->lock);
	rc = journal->hooks.sync(journal->hooks.owner);
	if (rc != 0)
		die("failed to sync the store: %s", strerror(-rc));
	if (unlink(path) != 0)
		die("failed to remove %s: %s", path, strerror(errno));
	pthread_mutex_lock(&journal->lock);
	journal->segment_count--;
	memmove(journal->segments, journal->segments + 1, journal->segment_count * sizeof *journal->segments);
	pthread_cond_broadcast(&journal->changed);
}

static void *trim(void *arg)
{
	struct journal *journal = arg;

	pthread_mutex_lock(&journal->lock);
	for (;;) {
		while (!oldest_is_done(journal) && !journal->closing)
			pthread_cond_wait(&journal->changed, &journal->lock);
		if (!oldest_is_done(journal))
			break;
		trim_oldest(journal);
	}
	pthread_mutex_unlock(&journal->lock);
	return NULL;
}

int journal_open(struct journal *journal, const char *dir, size_t segment_bytes, unsigned delay_us,
		 const struct journal_hooks *hooks)
{
	int rc;

	memset(journal, 0, sizeof *journal);
	snprintf(journal->dir, sizeof journal->dir, "%s/journal", dir);
	journal->hooks = *hooks;
	journal->delay_us = delay_us;
	journal->segment_bytes = segment_bytes;
	journal->fd = -1;
	journal->next_seq = 1;
	if (mkdir(journal->dir, 0755) != 0 && errno != EEXIST)
		return -errno;
	rc = journal_replay(journal);
	if (rc != 0)
		return rc;
	queue_init(&journal->queue);
	pthread_mutex_init(&journal->lock, NULL);
	pthread_cond_init(&journal->changed, NULL);
	next_segment(journal);
	rc = -pthread_create(&journal->writer, NULL, write_entries, journal);
	return rc != 0 ? rc : -pthread_create(&journal->trimmer, NULL, trim, journal);
}

void journal_submit(struct journal *journal, struct journal_entry *entry, void (*queued)(struct link *))
{
	queue_push(&journal->queue, &entry->link, queued);
}

void journal_applied(struct journal *journal, const struct journal_entry *entry)
{
	pthread_mutex_lock(&journal->lock);
	for (unsigned n = 0; n < journal->segment_count; n++)
		if (journal->segments[n].id == entry->segment) {
			if (--journal->segments[n].unapplied == 0)
				pthread_cond_broadcast(&journal->changed);
			break;
		}
	pthread_mutex_unlock(&journal->lock);
}

void journal_checkpoint(struct journal *journal)
{
	struct journal_entry mark = {.rotate = true};

	journal_submit(journal, &mark, NULL);
	pthread_mutex_lock(&journal->lock);
	while (mark.segment == 0 || journal->segments[0].id < mark.segment)
		pthread_cond_wait(&journal->changed, &journal->lock);
	pthread_mutex_unlock(&journal->lock);
}

void journal_close(struct journal *journal)
{
	journal_checkpoint(journal);
	queue_close(&journal->queue);
	pthread_join(journal->writer, NULL);
	pthread_mutex_lock(&journal->lock);
	journal->closing = true;
	pthread_cond_broadcast(&journal->changed);
	pthread_mutex_unlock(&journal->lock);
	pthread_join(journal->trimmer, NULL);
	close(journal->fd);
	queue_destroy(&journal->queue);
	pthread_cond_destroy(&journal->changed);
	pthread_mutex_destroy(&journal->lock);
}
