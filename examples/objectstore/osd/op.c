/* op.c - an operation is created from its message and takes over the message's data. */
#include <stdlib.h>

#include "log.h"
#include "osd.h"

struct op *op_new(struct osd *osd, struct conn *conn, const struct msg *msg)
{
	struct op *op = calloc(1, sizeof *op);

	if (!op)
		die("failed to allocate an operation: out of memory");
	op->osd = osd;
	op->conn = conn ? conn_hold(conn) : NULL;
	op->msg = *msg;
	op->pg = &osd->pgs[msg->pg % MAX_PGS];
	return op;
}

void op_free(struct op *op)
{
	if (op->msg.type == MSG_OSD_OP)
		atomic_fetch_sub(&op->osd->client_ops, 1);
	conn_release(op->conn);
	msg_clear(&op->msg);
	free(op);
}

void op_event(const struct op *op, const char *event)
{
	span_event(&op->handling, event);
}

void op_event_pg(const struct op *op, const char *event)
{
	span_event_at(&op->handling, &op->pg->endpoint, event);
}
