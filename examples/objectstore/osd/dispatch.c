/* dispatch.c - the dispatch queue: one per shard, each emptied by one thread. */
#include "osd.h"

/* Begins the spans of an operation that has just arrived. */
static void begin_spans(struct op *op)
{
	struct osd *osd = op->osd;

	switch (op->msg.type) {
	case MSG_OSD_OP:
		span_join(&op->message, &op->msg.trace, "mosdop", &osd->self);
		span_event(&op->message, SERVER_RECV);
		break;
	case MSG_SUB_OP:
		span_join(&op->message, &op->msg.trace, "mosdsubop", &osd->self);
		span_event(&op->message, SERVER_RECV);
		break;
	case MSG_SUB_OP_REPLY:
		span_join(&op->message, &op->msg.trace, "Main", &osd->mosdsubopreply_ep);
		span_event(&op->message, WIRE_RECV);
		span_pad(&op->message, LAYER_MOSDSUBOPREPLY, op->msg.annotations);
		span_event(&op->message, SPAN_ENDED);
		break;
	default:
		return; /* a refill belongs to no client's request */
	}
	span_child(&op->handling, &op->message, "OSD Handling op", &osd->self);
}

static void queued(struct link *link)
{
	op_event_pg(ITEM_OF(link, struct op, link), "Enqueued op");
}

unsigned dispatch_shard(const struct osd *osd, unsigned pg)
{
	return pg % osd->options.op_threads;
}

void dispatch(struct op *op)
{
	struct osd *osd = op->osd;

	begin_spans(op);
	op_event(op, "waiting of osdmap");
	pthread_mutex_lock(&osd->map_lock);
	if (op->msg.epoch > osd->map.epoch) {
		list_push(&osd->for_newer_map, &op->link); /* map.c goes on with it */
	} else {
		op_event(op, "Handling op");
		op_event_pg(op, "Enqueuing op");
		queue_push(&osd->dispatch[dispatch_shard(osd, op->pg->id)], &op->link, queued);
	}
	pthread_mutex_unlock(&osd->map_lock);
}

void *dispatch_thread(void *arg)
{
	struct queue *queue = arg;
	struct link *link;

	while ((link = queue_pop(queue)) != NULL) {
		struct op *op = ITEM_OF(link, struct op, link);
		struct pg *pg = op->pg;

		pthread_mutex_lock(&pg->lock);
		pg_handle(op);
		pthread_mutex_unlock(&pg->lock);
	}
	return NULL;
}
