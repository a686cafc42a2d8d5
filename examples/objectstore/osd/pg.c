/*
 * pg.c - a placement group: the order of its writes, and their confirmations.
 *
 * A write is in flight from when it gets its version number until it is journaled here and on the replica, answered, and
 * applied here. Other operations on that object wait, so that a reader never sees a write that could still be undone.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "osd.h"

void pg_init(struct osd *osd, unsigned id)
{
	struct pg *pg = &osd->pgs[id];

	pthread_mutex_init(&pg->lock, NULL);
	pg->id = id;
	list_init(&pg->waiting);
	pg->last_version = store_last_version(&osd->store, id);
	snprintf(pg->name, sizeof pg->name, "pg %d.%x", POOL, id);
	blkin_init_endpoint(&pg->endpoint, osd->self.ip, (int16_t)osd->self.port, pg->name);
}

static void track(struct op *op)
{
	struct pg *pg = op->pg;

	op->in_flight = true;
	op->prev = pg->last;
	op->next = NULL;
	if (pg->last)
		pg->last->next = op;
	else
		pg->first = op;
	pg->last = op;
}

static void untrack(struct op *op)
{
	struct pg *pg = op->pg;

	if (op->prev)
		op->prev->next = op->next;
	else
		pg->first = op->next;
	if (op->next)
		op->next->prev = op->prev;
	else
		pg->last = op->prev;
	op->in_flight = false;
}

static bool object_is_busy(const struct pg *pg, const char *name)
{
	for (const struct op *op = pg->first; op; op = op->next)
		if (strcmp(op->msg.name, name) == 0)
			return true;
	return false;
}

void pg_requeue_waiting(struct pg *pg, struct osd *osd)
{
	struct link *link;

	while ((link = list_pop(&pg->waiting)) != NULL)
		queue_push(&osd->dispatch[dispatch_shard(osd, pg->id)], link, NULL);
}

static void end_span(struct op *op)
{
	bool replica = op->msg.type == MSG_SUB_OP;

	op_event_pg(op, "All done");
	span_pad(&op->handling, replica ? LAYER_REPLICA : LAYER_PRIMARY, op->msg.annotations);
	op_event(op, SPAN_ENDED);
}

void pg_finish_if_done(struct op *op)
{
	struct pg *pg = op->pg;
	struct osd *osd = op->osd;

	if (op->committed && !op->waiting_replica && !op->replied) {
		op->replied = true;
		reply_to_gateway(op, FLAG_COMMIT, 0, NULL);
		op_event_pg(op, "Commit sent");
	}
	if (!op->replied || !op->committed || !op->applied)
		return;
	end_span(op);
	untrack(op);
	op_free(op);
	pg_requeue_waiting(pg, osd);
}

/* Answers an operation that writes nothing. */
static void answer(struct op *op, int result, const struct msg *with)
{
	op_event_pg(op, "Commit sent");
	reply_to_gateway(op, FLAG_COMMIT, result, with);
	end_span(op);
	op_free(op);
}

static void read_object(struct op *op)
{
	struct osd *osd = op->osd;
	struct object_version is = {0};
	struct msg with = {0};
	span access;
	int rc;

	span_child(&access, &op->handling, "Filestore access", &osd->filestore_ep);
	span_event(&access, "Read begins");
	rc = store_read(&osd->store, op->pg->id, op->msg.name, &with.data, &is);
	span_integer(&access, "Bytes", is.size);
	span_event(&access, SPAN_ENDED);
	if (rc == -EIO)
		log_line("failed to read %s of %s: its checksum is wrong; the gateway asks the other replica",
			 op->msg.name, op->pg->name);
	with.data_len = rc == 0 ? is.size : 0;
	with.data_crc = is.crc;
	with.version = is.version;
	answer(op, rc, &with);
	msg_clear(&with);
}

static void issue_write(struct op *op)
{
	struct pg *pg = op->pg;

	pg->last_version = (uint64_t)pg->epoch << 32 | ((pg->last_version + 1) & UINT32_MAX);
	op->version = pg->last_version;
	track(op);
	reply_to_gateway(op, FLAG_ACK, 0, NULL);
	op_event_pg(op, "Issuing repop");
	if (pg->entry.state != REPLICA_ABSENT) {
		op->waiting_replica = true;
		op_event_pg(op, "Issuing replication");
		peer_send_sub_op(op);
		op_event_pg(op, op->osd->waiting_for[pg->entry.replica]);
	}
	submit_write(op);
}

static void execute(struct op *op)
{
	struct object_version is;

	op_event_pg(op, "Executing ctx");
	if (op->msg.op == OP_GET)
		read_object(op);
	else if (op->msg.op == OP_DELETE && !store_find(&op->osd->store, op->pg->id, op->msg.name, &is))
		answer(op, -ENOENT, NULL);
	else
		issue_write(op);
}

static void begin(struct op *op)
{
	if (op->begun)
		return;
	op->begun = true;
	if (op->msg.type == MSG_OSD_OP || op->msg.type == MSG_SUB_OP)
		span_string(&op->handling, "Object", op->msg.name);
	op_event_pg(op, "Dequeued op");
	op_event_pg(op, "Starting request");
	op_event_pg(op, "Handling message");
	if (op->msg.type != MSG_SUB_OP_REPLY)
		op_event_pg(op, "Do op");
}

static void handle_client_op(struct op *op)
{
	struct pg *pg = op->pg;
	bool ours = pg->entry.primary == op->osd->options.id ||
		    (op->msg.op == OP_GET && (op->msg.flags & FLAG_ANY_REPLICA));

	if (!ours)
		answer(op, -ESTALE, NULL);
	else if (pg->barriers > 0 || object_is_busy(pg, op->msg.name))
		list_push(&pg->waiting, &op->link);
	else
		execute(op);
}

static void handle_listing(struct op *op)
{
	struct pg *pg = op->pg;

	if (!op->in_flight) {
		op->in_flight = true; /* counted as a barrier; it is not in the list of writes */
		pg->barriers++;
	}
	if (pg->first) {
		list_push(&pg->waiting, &op->link);
		return;
	}
	pg->barriers--;
	serve_listing(op);
	pg_requeue_waiting(pg, op->osd);
	op_free(op);
}

static void handle_sub_op(struct op *op)
{
	struct pg *pg = op->pg;

	if (op->msg.epoch < pg->entry.primary_since) {
		replica_reply(op, -ESTALE); /* from a primary that has been replaced */
		end_span(op);
		op_free(op);
		return;
	}
	track(op);
	replica_write(op);
}

void pg_handle(struct op *op)
{
	begin(op);
	switch (op->msg.type) {
	case MSG_OSD_OP:
		handle_client_op(op);
		break;
	case MSG_SUB_OP:
		handle_sub_op(op);
		break;
	case MSG_SUB_OP_REPLY:
		primary_hears_replica(op);
		break;
	case MSG_RECOVER_LIST:
		handle_listing(op);
		break;
	default:
		serve_pull(op);
		op_free(op);
		break;
	}
}

/* Nobody waits for these any more: the gateway has asked the new primary. */
static void abandon(struct op *op)
{
	if (op->replied)
		return;
	op->replied = true;
	op->waiting_replica = false;
	op_event_pg(op, "Op abandoned");
	span_event(&op->message, SERVER_SEND);
}

void pg_take_map(struct osd *osd, struct pg *pg, const struct osdmap *map)
{
	bool primary = map->pg[pg->id].primary == osd->options.id;

	pg->entry = map->pg[pg->id];
	pg->epoch = map->epoch;
	for (struct op *op = pg->first, *next; op; op = next) {
		next = op->next;
		if (op->msg.type != MSG_OSD_OP)
			continue;
		if (!primary)
			abandon(op);
		else if (pg->entry.state == REPLICA_ABSENT)
			op->waiting_replica = false;
		pg_finish_if_done(op);
	}
	store_keep_tombstones(&osd->store, pg->id, !primary && pg->entry.state == REPLICA_RECOVERING);
	pg_requeue_waiting(pg, osd);
}
