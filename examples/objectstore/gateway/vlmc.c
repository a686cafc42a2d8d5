/* vlmc.c - the server side of the client's span ("bench service"), and the layer below it. */
#include <errno.h>
#include <string.h>

#include "gateway.h"

#define STATUS_BYTES 4096

static bool answer(struct conn *conn, const struct msg *op, int result, const struct msg *from)
{
	struct msg reply = {.type = MSG_CLIENT_REPLY, .op = op->op, .tid = op->tid, .result = result, .trace = op->trace};

	if (from) {
		reply.version = from->version;
		reply.data = from->data;
		reply.data_len = from->data_len;
		reply.data_crc = from->data_crc;
	}
	return conn_send(conn, &reply) == 0;
}

static int run(struct gateway *gateway, const struct msg *op, const span *bench, struct msg *result)
{
	span handling;
	unsigned pg;
	int rc;

	span_child(&handling, bench, "vlmc service", &gateway->vlmc);
	span_event(&handling, "Request accepted");
	span_event(&handling, "Asking mapper");
	pg = mapper_find(gateway, op, &handling);
	span_event(&handling, "Handing to radosd");
	rc = radosd_run(gateway, op, pg, &handling, result);
	span_pad(&handling, LAYER_VLMC, op->annotations);
	span_event(&handling, SPAN_ENDED);
	return rc;
}

static bool serve_object(struct gateway *gateway, struct conn *conn, const struct msg *op)
{
	struct msg result = {0};
	span bench;
	bool sent;
	int rc;

	span_join(&bench, &op->trace, "bench service", &gateway->vlmc);
	span_event(&bench, SERVER_RECV);
	rc = run(gateway, op, &bench, &result);
	span_event(&bench, SERVER_SEND);
	sent = answer(conn, op, rc, &result);
	msg_clear(&result);
	return sent;
}

/* In a status request, tid holds how long to wait, in milliseconds. */
static bool serve_status(struct gateway *gateway, struct conn *conn, const struct msg *op)
{
	unsigned timeout_ms = op->tid < 600000 ? (unsigned)op->tid : 600000;
	char text[STATUS_BYTES];
	struct msg result = {0};
	int rc = monitor_status(gateway, op->flags, timeout_ms, text, sizeof text);

	msg_set_data(&result, text, (uint32_t)strlen(text));
	return answer(conn, op, rc, &result);
}

bool vlmc_serve(struct gateway *gateway, struct conn *conn, const struct msg *op)
{
	if (op->type != MSG_CLIENT_OP || op->op == OP_NONE)
		return false;
	if (op->op == OP_STATUS)
		return serve_status(gateway, conn, op);
	if (op->name_len == 0)
		return answer(conn, op, -EINVAL, NULL);
	return serve_object(gateway, conn, op);
}
