/* objecter.c - keeps every request until its commit has come, and sends it again when its OSD goes down. */
#include <errno.h>
#include <string.h>

#include "gateway.h"
#include "log.h"

static void add(struct gateway *gateway, struct request *request)
{
	request->tid = ++gateway->next_tid;
	request->prev = gateway->last;
	request->next = NULL;
	if (gateway->last)
		gateway->last->next = request;
	else
		gateway->first = request;
	gateway->last = request;
	gateway->requests_of_pg[request->pg]++;
}

static void take_out(struct gateway *gateway, struct request *request)
{
	if (request->prev)
		request->prev->next = request->next;
	else
		gateway->first = request->next;
	if (request->next)
		request->next->prev = request->prev;
	else
		gateway->last = request->prev;
	if (--gateway->requests_of_pg[request->pg] == 0)
		monitor_group_at_rest(gateway, request->pg);
}

static int target_of(const struct gateway *gateway, const struct request *request)
{
	const struct pg_entry *pg = &gateway->map.pg[request->pg];
	unsigned osd = pg->primary;

	if (!gateway->established)
		return -1;
	if (request->any_replica && pg->state == REPLICA_COMPLETE)
		osd = pg->replica;
	return gateway->map.osd[osd].up ? (int)osd : -1;
}

static void end_message(struct request *request, const char *event)
{
	if (!request->message_open)
		return;
	request->message_open = false;
	span_event(&request->message, event);
}

static void send_to(struct gateway *gateway, struct request *request, int target)
{
	struct msg msg = *request->op;

	end_message(request, SPAN_ENDED); /* an earlier try that nobody will answer */
	span_child(&request->message, &request->librados, "mosdop", &gateway->vlmc);
	request->message_open = true;
	request->target = target;
	request->sent++;
	msg.type = MSG_OSD_OP;
	msg.tid = request->tid;
	msg.epoch = gateway->map.epoch;
	msg.pg = (uint16_t)request->pg;
	msg.flags = request->any_replica ? FLAG_ANY_REPLICA : 0;
	msg.trace = request->message.info;
	span_event_at(&request->librados, &gateway->objecter, "Op sent");
	span_event(&request->message, CLIENT_SEND);
	conn_send(gateway->osds[target].conn, &msg); /* if this fails, the session ends and it is sent again */
}

static void send_where_it_belongs(struct gateway *gateway, struct request *request)
{
	int target = target_of(gateway, request);

	if (!request->done && target >= 0 && target != request->target && gateway->osds[target].conn)
		send_to(gateway, request, target);
}

void objecter_osd_down(struct gateway *gateway, unsigned osd)
{
	for (struct request *request = gateway->first; request; request = request->next)
		if (request->target == (int)osd)
			request->target = -1;
}

void objecter_new_map(struct gateway *gateway)
{
	for (struct request *request = gateway->first; request; request = request->next)
		send_where_it_belongs(gateway, request);
}

static struct request *find(struct gateway *gateway, uint64_t tid, unsigned osd)
{
	for (struct request *request = gateway->first; request; request = request->next)
		if (request->tid == tid)
			return request->target == (int)osd && !request->done ? request : NULL;
	return NULL;
}

static void end_reply_message(struct gateway *gateway, const struct msg *reply)
{
	bool ack = reply->flags & FLAG_ACK;
	span message;

	span_join(&message, &reply->trace, "Main", &gateway->mosdopreply);
	span_event(&message, WIRE_RECV);
	span_pad(&message, ack ? LAYER_ACK : LAYER_COMMIT, reply->annotations);
	span_event(&message, SPAN_ENDED);
}

static void finish(struct gateway *gateway, struct request *request, struct msg *reply)
{
	span_event_at(&request->librados, &gateway->objecter, "Commit received");
	request->reply = *reply;
	if (request->op->op == OP_DELETE && request->sent > 1 && reply->result == -ENOENT)
		request->reply.result = 0; /* an earlier try reached the replica before its primary was lost */
	reply->data = NULL; /* the request owns it now */
	request->done = true;
	pthread_cond_signal(&request->finished);
}

static void take_commit(struct gateway *gateway, struct request *request, struct msg *reply)
{
	end_message(request, CLIENT_RECV);
	if (reply->result == -ESTALE) {
		request->target = -1;
		if (reply->epoch < gateway->map.epoch) /* else the next map decides */
			send_where_it_belongs(gateway, request);
	} else if (reply->result == -EIO && request->op->op == OP_GET && !request->any_replica &&
		   gateway->map.pg[request->pg].state == REPLICA_COMPLETE) {
		request->any_replica = true;
		send_where_it_belongs(gateway, request);
	} else {
		finish(gateway, request, reply);
	}
}

void objecter_take_reply(struct osd_session *session, struct msg *reply)
{
	struct gateway *gateway = session->gateway;
	struct request *request;

	end_reply_message(gateway, reply);
	pthread_mutex_lock(&gateway->lock);
	request = find(gateway, reply->tid, session->id);
	if (request && (reply->flags & FLAG_ACK))
		span_event_at(&request->librados, &gateway->objecter, "Ack received");
	else if (request)
		take_commit(gateway, request, reply);
	pthread_mutex_unlock(&gateway->lock);
}

static int wait_for_commit(struct gateway *gateway, struct request *request)
{
	struct timespec deadline = deadline_in(gateway->options.op_timeout_ms);
	int rc = 0;

	while (!request->done && !gateway->stopping && rc == 0)
		rc = pthread_cond_timedwait(&request->finished, &gateway->lock, &deadline);
	end_message(request, SPAN_ENDED);
	return request->done ? request->reply.result : -ETIMEDOUT;
}

int objecter_run(struct gateway *gateway, const struct msg *op, unsigned pg, const span *radosd, struct msg *reply)
{
	struct request request = {.op = op, .pg = pg, .target = -1};
	int rc;

	condition_init(&request.finished);
	span_child(&request.librados, radosd, "librados", &gateway->ioctx);
	span_event(&request.librados, "Operation submitted");
	pthread_mutex_lock(&gateway->lock);
	add(gateway, &request);
	span_event_at(&request.librados, &gateway->objecter, "Target calculated");
	send_where_it_belongs(gateway, &request);
	rc = wait_for_commit(gateway, &request);
	take_out(gateway, &request);
	pthread_mutex_unlock(&gateway->lock);
	span_pad(&request.librados, LAYER_LIBRADOS, op->annotations);
	span_event(&request.librados, SPAN_ENDED);
	pthread_cond_destroy(&request.finished);
	*reply = request.reply;
	return rc;
}
