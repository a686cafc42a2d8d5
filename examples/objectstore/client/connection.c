/* connection.c - the client's side of the root span: cs before the request is sent, cr when the answer has come. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"
#include "net.h"

static const struct blkin_endpoint bench = {.name = "bench"};

int connection_open(struct connection *connection, const struct client_options *options)
{
	char address[ADDRESS_BYTES];
	int rc = 0;

	memset(connection, 0, sizeof *connection);
	connection->options = options;
	if (options->gateway[0] == '@')
		rc = ready_read(options->gateway + 1, address);
	else if (snprintf(address, sizeof address, "%s", options->gateway) >= (int)sizeof address)
		rc = -EINVAL;
	connection->fd = rc == 0 ? net_connect(address) : rc;
	return connection->fd < 0 ? connection->fd : 0;
}

void connection_close(struct connection *connection)
{
	close(connection->fd);
}

static int exchange(struct connection *connection, const struct msg *question, struct msg *reply)
{
	int rc = msg_send(connection->fd, question);

	if (rc == 0)
		rc = msg_receive(connection->fd, reply);
	if (rc == 0 && (reply->type != MSG_CLIENT_REPLY || reply->tid != question->tid)) {
		msg_clear(reply);
		rc = -EBADMSG;
	}
	connection->broken = rc != 0;
	return rc == -EPIPE ? -ECONNRESET : rc;
}

static void begin(span *root, const struct client_options *options, const char *name, uint32_t len)
{
	memset(root, 0, sizeof *root);
	if (!options->trace)
		return;
	span_root(root, "bench service", &bench);
	span_string(root, "Object", name);
	span_integer(root, "Bytes", len);
	span_event(root, CLIENT_SEND);
}

int connection_run(struct connection *connection, enum op_code op, const char *name, const void *data, uint32_t len,
		   struct msg *reply)
{
	struct msg question = {.type = MSG_CLIENT_OP, .op = op, .tid = ++connection->next_tid};
	span root;
	int rc;

	question.annotations = (uint16_t)connection->options->annotations;
	msg_set_name(&question, name);
	msg_set_data(&question, data, len);
	begin(&root, connection->options, name, len);
	question.trace = root.info;
	rc = exchange(connection, &question, reply);
	span_pad(&root, LAYER_BENCH, connection->options->annotations);
	span_event(&root, CLIENT_RECV);
	if (rc == 0 && reply->result != 0) {
		rc = reply->result;
		msg_clear(reply);
	}
	return rc;
}

int connection_status(struct connection *connection, struct msg *reply)
{
	struct msg question = {.type = MSG_CLIENT_OP,
			       .op = OP_STATUS,
			       .flags = connection->options->wait,
			       .tid = connection->options->timeout_ms};

	return exchange(connection, &question, reply);
}
