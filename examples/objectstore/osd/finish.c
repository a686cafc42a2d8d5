/* finish.c - writes from the journal into the store: the hooks run in the journal's thread, then the filestore threads. */
#include <errno.h>
#include <string.h>

#include "log.h"
#include "osd.h"

static struct op *op_of(struct journal_entry *entry)
{
	return ITEM_OF(entry, struct op, entry);
}

static void queued(struct link *link)
{
	op_event(op_of(ITEM_OF(link, struct journal_entry, link)), "Queued for filestore");
}

/* Submits the write to the journal; the hooks then bring it into the store. Call with the pg lock held, because writes are
 * applied in the order of submission. */
void submit_write(struct op *op)
{
	op->entry = (struct journal_entry){
		.op = op->msg.op,
		.pg = op->msg.pg,
		.version = op->version,
		.name = op->msg.name,
		.name_len = op->msg.name_len,
		.data = op->msg.data,
		.data_len = op->msg.data_len,
		.data_crc = op->msg.data_crc,
	};
	op_event(op, "Queueing for filestore");
	journal_submit(&op->osd->journal, &op->entry, queued);
}

static void starting(void *owner, struct journal_entry *entry)
{
	struct op *op = op_of(entry);

	(void)owner;
	span_child(&op->journal, &op->handling, "Journal access", &op->osd->journal_ep);
	span_event(&op->journal, "Write begins");
	span_integer(&op->journal, "Bytes", entry->data_len);
}

static void end_journal_span(struct op *op)
{
	bool replica = op->msg.type == MSG_SUB_OP;

	if (op->msg.op == OP_NONE)
		return;
	span_pad(&op->journal, replica ? LAYER_REPLICA_JOURNAL : LAYER_PRIMARY_JOURNAL, op->msg.annotations);
	span_event(&op->journal, SPAN_ENDED);
}

static void committed(void *owner, struct journal_entry *entry)
{
	struct op *op = op_of(entry);
	struct pg *pg = op->pg;
	struct osd *osd = owner;

	end_journal_span(op);
	pthread_mutex_lock(&pg->lock);
	op_event_pg(op, "OP committed");
	op->committed = true;
	if (op->msg.type == MSG_SUB_OP) {
		replica_reply(op, 0);
		op->replied = true;
	}
	pg_finish_if_done(op); /* op still exists after this: it has not been applied */
	pthread_mutex_unlock(&pg->lock);
	queue_push(&osd->filestore[op->pg->id % osd->options.filestore_threads], &op->link, NULL);
}

static int apply_entry(struct store *store, const struct journal_entry *entry)
{
	struct object_version is = {entry->version, entry->data_len, entry->data_crc};

	switch (entry->op) {
	case OP_PUT:
		return store_put(store, entry->pg, entry->name, &is, entry->data, 0);
	case OP_DELETE:
		return store_delete(store, entry->pg, entry->name, entry->version, 0);
	default:
		return 0;
	}
}

static void apply(struct op *op)
{
	bool replica = op->msg.type == MSG_SUB_OP;
	span access;
	int rc;

	if (op->msg.op == OP_NONE)
		return;
	span_child(&access, &op->handling, "Filestore access", &op->osd->filestore_ep);
	span_event(&access, "Write begins");
	span_integer(&access, "Bytes", op->msg.data_len);
	rc = apply_entry(&op->osd->store, &op->entry);
	span_pad(&access, replica ? LAYER_REPLICA_FILESTORE : LAYER_PRIMARY_FILESTORE, op->msg.annotations);
	span_event(&access, SPAN_ENDED);
	if (rc != 0) /* acknowledged and in the journal: a restart applies it once the disk has room */
		die("failed to apply %s to the store: %s", op->msg.name, strerror(-rc));
}

void *filestore_thread(void *arg)
{
	struct queue *queue = arg;
	struct link *link;

	while ((link = queue_pop(queue)) != NULL) {
		struct op *op = ITEM_OF(link, struct op, link);
		struct pg *pg = op->pg;

		apply(op);
		journal_applied(&op->osd->journal, &op->entry);
		pthread_mutex_lock(&pg->lock);
		op_event_pg(op, "OP applied");
		op->applied = true;
		pg_finish_if_done(op);
		pthread_mutex_unlock(&pg->lock);
	}
	return NULL;
}

static int replay(void *owner, const struct journal_entry *entry)
{
	return apply_entry(&((struct osd *)owner)->store, entry);
}

static int sync_store(void *owner)
{
	return store_sync(&((struct osd *)owner)->store);
}

const struct journal_hooks osd_journal_hooks = {
	.replay = replay,
	.sync = sync_store,
	.starting = starting,
	.committed = committed,
};
