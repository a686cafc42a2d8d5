/* reply.c - "mosdopreply": its span begins at the OSD (ws) and ends at the gateway (wr, Span ended). */
#include "osd.h"

void reply_to_gateway(struct op *op, uint16_t flags, int result, const struct msg *answer)
{
	struct msg reply = {
		.type = MSG_OSD_OP_REPLY,
		.op = op->msg.op,
		.tid = op->msg.tid,
		.epoch = op->msg.epoch,
		.pg = op->msg.pg,
		.annotations = op->msg.annotations,
		.version = answer ? answer->version : op->version,
		.result = result,
		.flags = flags,
	};
	span message;

	if (answer) {
		reply.data = answer->data;
		reply.data_len = answer->data_len;
		reply.data_crc = answer->data_crc;
	}
	span_child(&message, &op->handling, "Main", &op->osd->mosdopreply_ep);
	span_string(&message, "Type", flags & FLAG_ACK ? "ack" : "commit");
	reply.trace = message.info;
	if (flags & FLAG_COMMIT) {
		span_pad(&op->message, LAYER_MOSDOP, op->msg.annotations);
		span_event(&op->message, SERVER_SEND);
	}
	span_event(&message, WIRE_SEND);
	conn_send(op->conn, &reply);
}
