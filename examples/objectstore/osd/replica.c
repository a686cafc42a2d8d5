/* replica.c - a write on the replica, its confirmation, and how the primary handles the confirmation. */
#include <errno.h>

#include "log.h"
#include "osd.h"

void replica_write(struct op *op)
{
	struct pg *pg = op->pg;

	op->version = op->msg.version;
	if (op->version > pg->last_version)
		pg->last_version = op->version;
	else
		op->msg.op = OP_NONE; /* sent again after a lost connection: it is in our journal, or queued for it */
	submit_write(op);
}

void replica_reply(struct op *op, int result)
{
	struct msg reply = {
		.type = MSG_SUB_OP_REPLY,
		.op = op->msg.op,
		.tid = op->msg.tid,
		.epoch = op->msg.epoch,
		.pg = op->msg.pg,
		.annotations = op->msg.annotations,
		.version = op->msg.version,
		.result = result,
	};
	span message;

	span_child(&message, &op->handling, "Main", &op->osd->mosdsubopreply_ep);
	reply.trace = message.info;
	span_pad(&op->message, LAYER_MOSDSUBOP, op->msg.annotations);
	span_event(&op->message, SERVER_SEND);
	span_event(&message, WIRE_SEND);
	conn_send(op->conn, &reply);
	op_event_pg(op, "Commit sent");
}

static struct op *find_write(struct pg *pg, uint64_t version)
{
	for (struct op *op = pg->first; op; op = op->next)
		if (op->msg.type == MSG_OSD_OP && op->version == version)
			return op;
	return NULL;
}

void primary_hears_replica(struct op *reply)
{
	struct op *op = find_write(reply->pg, reply->msg.version);

	span_pad(&reply->handling, LAYER_PRIMARY_REPLY, reply->msg.annotations);
	op_event(reply, SPAN_ENDED);
	if (op && op->waiting_replica && reply->msg.result == 0) {
		span_event(&op->sub_op, CLIENT_RECV);
		op_event_pg(op, "Sub op commit received");
		op->waiting_replica = false;
		pg_finish_if_done(op);
	} else if (reply->msg.result == -ESTALE) {
		log_line("%s: the replica knows a newer primary; waiting for the map", reply->pg->name);
	}
	op_free(reply);
}
