/* session.c - one thread for each incoming connection: the gateway's, and those of other OSDs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/socket.h>

#include "bytes.h"
#include "log.h"
#include "osd.h"

#define MAX_SESSIONS 64

struct session {
	struct sessions *sessions;
	struct conn *conn;
	pthread_t thread;
	bool used, finished;
};

struct sessions {
	struct osd *osd;
	int listener;
	pthread_t acceptor;
	pthread_mutex_t lock;
	struct session all[MAX_SESSIONS];
};

static void greet_gateway(struct osd *osd, struct conn *conn, const struct msg *hello)
{
	unsigned char data[8 + OSDMAP_MAX_BYTES];
	struct msg reply = {.type = MSG_HELLO_REPLY, .tid = hello->tid, .result = osd->options.id, .version = osd->boot};
	size_t len = 0;
	int rc = map_load(osd, data + 8, &len);

	if (rc != 0)
		die("failed to read the map in %s: %s", osd->options.dir, strerror(-rc));
	put_u64(data, osd->store_id);
	msg_set_data(&reply, data, (uint32_t)(8 + len));
	pthread_mutex_lock(&osd->map_lock);
	conn_release(osd->gateway);
	osd->gateway = conn_hold(conn);
	pthread_mutex_unlock(&osd->map_lock);
	conn_send(conn, &reply);
}

static void take_client_op(struct osd *osd, struct conn *conn, struct msg *msg)
{
	struct op *op = op_new(osd, conn, msg);

	if (atomic_fetch_add(&osd->client_ops, 1) < MAX_CLIENT_OPS) {
		dispatch(op);
		return;
	}
	reply_to_gateway(op, FLAG_COMMIT, -EAGAIN, NULL);
	op_free(op);
}

/* These need a valid name: a write without one would be journaled, but replay could read neither it nor later entries. */
static bool is_of_an_object(const struct msg *msg)
{
	return msg->type == MSG_OSD_OP || msg->type == MSG_SUB_OP || msg->type == MSG_RECOVER_PULL;
}

/* false: the peer does not speak our protocol. */
static bool take_message(struct osd *osd, struct conn *conn, struct msg *msg)
{
	struct msg pong = {.type = MSG_PONG, .tid = msg->tid};

	if (msg->pg >= MAX_PGS || (is_of_an_object(msg) && msg->name_len == 0)) {
		msg_clear(msg);
		return false;
	}
	switch (msg->type) {
	case MSG_HELLO:
		greet_gateway(osd, conn, msg);
		msg_clear(msg);
		return true;
	case MSG_PING:
		msg_clear(msg);
		return conn_send(conn, &pong) == 0;
	case MSG_MAP: {
		struct op *op = op_new(osd, conn, msg);
		queue_push(&osd->maps, &op->link, NULL);
		return true;
	}
	case MSG_OSD_OP:
		take_client_op(osd, conn, msg);
		return true;
	case MSG_SUB_OP:
	case MSG_RECOVER_LIST:
	case MSG_RECOVER_PULL:
		dispatch(op_new(osd, conn, msg));
		return true;
	default:
		msg_clear(msg);
		return false;
	}
}

static void *session_thread(void *arg)
{
	struct session *session = arg;
	struct osd *osd = session->sessions->osd;
	struct msg msg;
	int rc;

	while ((rc = conn_receive(session->conn, &msg)) == 0)
		if (!take_message(osd, session->conn, &msg)) {
			rc = -EBADMSG;
			break;
		}
	if (rc == -EBADMSG)
		log_line("closing a connection: it carried something that is not an object store message");
	conn_shutdown(session->conn);
	pthread_mutex_lock(&session->sessions->lock);
	session->finished = true;
	pthread_mutex_unlock(&session->sessions->lock);
	return NULL;
}

static void reap(struct session *session)
{
	pthread_join(session->thread, NULL);
	conn_release(session->conn);
	session->used = false;
}

/* A free place, after reaping finished sessions; NULL when all are busy. */
static struct session *find_place(struct sessions *sessions)
{
	struct session *place = NULL;

	for (int n = 0; n < MAX_SESSIONS; n++) {
		struct session *session = &sessions->all[n];
		if (session->used && session->finished)
			reap(session);
		if (!session->used)
			place = session;
	}
	return place;
}

static void start_session(struct sessions *sessions, int fd)
{
	struct session *place;

	pthread_mutex_lock(&sessions->lock);
	place = find_place(sessions);
	if (place && (place->conn = conn_new(fd)) != NULL) {
		place->sessions = sessions;
		place->finished = false;
		place->used = pthread_create(&place->thread, NULL, session_thread, place) == 0;
		if (!place->used)
			conn_release(place->conn);
	} else if (!place) {
		log_line("refusing a connection: there are %d already", MAX_SESSIONS);
		close(fd);
	}
	pthread_mutex_unlock(&sessions->lock);
}

static void *accept_thread(void *arg)
{
	struct sessions *sessions = arg;
	int fd;

	while ((fd = net_accept(sessions->listener)) >= 0)
		start_session(sessions, fd);
	return NULL;
}

struct sessions *sessions_start(struct osd *osd, int listener)
{
	struct sessions *sessions = calloc(1, sizeof *sessions);

	if (!sessions)
		die("failed to allocate: out of memory");
	sessions->osd = osd;
	sessions->listener = listener;
	pthread_mutex_init(&sessions->lock, NULL);
	if (pthread_create(&sessions->acceptor, NULL, accept_thread, sessions) != 0)
		die("failed to start the accepting thread");
	return sessions;
}

void sessions_stop(struct sessions *sessions)
{
	shutdown(sessions->listener, SHUT_RDWR);
	pthread_join(sessions->acceptor, NULL);
	close(sessions->listener);
	for (int n = 0; n < MAX_SESSIONS; n++) {
		struct session *session = &sessions->all[n];
		if (!session->used)
			continue;
		conn_shutdown(session->conn);
		reap(session);
	}
	pthread_mutex_destroy(&sessions->lock);
	free(sessions);
}
