/*
 * peer.c - a primary's connection to another OSD.
 *
 * Writes in flight are sent in order on each new connection before any new write: peer_send_sub_op() sends only on
 * the connection (session) on which its group's earlier writes have been sent.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "log.h"
#include "osd.h"

#define RETRY_MS 50

/* Holds and returns the connection if it is the given session; session 0: the connection, whichever it is. */
static struct conn *current(struct peer *peer, unsigned *session)
{
	struct conn *conn;

	pthread_mutex_lock(&peer->lock);
	conn = peer->conn ? conn_hold(peer->conn) : NULL;
	*session = peer->session;
	pthread_mutex_unlock(&peer->lock);
	return conn;
}

static void send_sub_op(struct conn *conn, struct op *op)
{
	struct msg msg = op->msg;

	msg.type = MSG_SUB_OP;
	msg.tid = msg.version = op->version;
	msg.epoch = op->pg->epoch;
	msg.trace = op->sub_op.info;
	conn_send(conn, &msg);
}

void peer_send_sub_op(struct op *op)
{
	struct osd *osd = op->osd;
	struct peer *peer = &osd->peers[op->pg->entry.replica];
	unsigned session;
	struct conn *conn = current(peer, &session);

	span_child(&op->sub_op, &op->handling, "mosdsubop", &osd->self);
	span_event(&op->sub_op, CLIENT_SEND);
	if (conn && op->pg->peer_session == session)
		send_sub_op(conn, op);
	conn_release(conn);
}

static void send_writes_in_flight(struct peer *peer, struct conn *conn, unsigned session)
{
	struct osd *osd = peer->osd;

	for (unsigned n = 0; n < MAX_PGS; n++) {
		struct pg *pg = &osd->pgs[n];

		pthread_mutex_lock(&pg->lock);
		if (pg->entry.primary == peer->id || pg->entry.replica == peer->id) {
			pg->peer_session = session;
			for (struct op *op = pg->first; op; op = op->next)
				if (op->msg.type == MSG_OSD_OP && op->waiting_replica)
					send_sub_op(conn, op);
		}
		pthread_mutex_unlock(&pg->lock);
	}
}

static void receive_replies(struct peer *peer, struct conn *conn)
{
	struct msg msg;

	while (conn_receive(conn, &msg) == 0) {
		if (msg.type != MSG_SUB_OP_REPLY || msg.pg >= MAX_PGS) {
			msg_clear(&msg);
			return;
		}
		dispatch(op_new(peer->osd, NULL, &msg));
	}
}

static void serve_connection(struct peer *peer, int fd)
{
	struct conn *conn = conn_new(fd);
	unsigned session;

	if (!conn)
		return;
	pthread_mutex_lock(&peer->lock);
	peer->conn = conn;
	session = ++peer->session;
	if (peer->stopping)
		conn_shutdown(conn); /* peer_stop() came before it */
	pthread_mutex_unlock(&peer->lock);
	send_writes_in_flight(peer, conn, session);
	receive_replies(peer, conn);
	pthread_mutex_lock(&peer->lock);
	peer->conn = NULL;
	pthread_mutex_unlock(&peer->lock);
	conn_shutdown(conn);
	conn_release(conn);
}

static void pause_before_retry(struct peer *peer)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += RETRY_MS * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_nsec -= 1000000000L;
		until.tv_sec++;
	}
	if (!peer->stopping)
		pthread_cond_timedwait(&peer->changed, &peer->lock, &until);
}

static void *peer_thread(void *arg)
{
	struct peer *peer = arg;
	char address[ADDRESS_BYTES];

	pthread_mutex_lock(&peer->lock);
	for (;;) {
		int fd;

		while (!peer->stopping && peer->address[0] == '\0')
			pthread_cond_wait(&peer->changed, &peer->lock);
		if (peer->stopping)
			break;
		memcpy(address, peer->address, sizeof address);
		pthread_mutex_unlock(&peer->lock);
		fd = net_connect(address);
		if (fd >= 0)
			serve_connection(peer, fd);
		pthread_mutex_lock(&peer->lock);
		pause_before_retry(peer);
	}
	pthread_mutex_unlock(&peer->lock);
	return NULL;
}

void peer_start(struct osd *osd, unsigned id)
{
	struct peer *peer = &osd->peers[id];

	peer->osd = osd;
	peer->id = id;
	pthread_mutex_init(&peer->lock, NULL);
	pthread_cond_init(&peer->changed, NULL);
	if (pthread_create(&peer->thread, NULL, peer_thread, peer) != 0)
		die("failed to start a thread for osd.%u", id);
}

void peer_stop(struct peer *peer)
{
	pthread_mutex_lock(&peer->lock);
	peer->stopping = true;
	if (peer->conn)
		conn_shutdown(peer->conn);
	pthread_cond_broadcast(&peer->changed);
	pthread_mutex_unlock(&peer->lock);
	pthread_join(peer->thread, NULL);
}

void peer_destroy(struct peer *peer)
{
	pthread_cond_destroy(&peer->changed);
	pthread_mutex_destroy(&peer->lock);
}

void peer_take_address(struct peer *peer, bool up, const char *address)
{
	pthread_mutex_lock(&peer->lock);
	if (!up)
		address = "";
	if (strcmp(peer->address, address) != 0) {
		snprintf(peer->address, sizeof peer->address, "%s", address);
		if (peer->conn)
			conn_shutdown(peer->conn); /* it leads to another process */
		pthread_cond_broadcast(&peer->changed);
	}
	pthread_mutex_unlock(&peer->lock);
}
