/* osd_session.c - one thread per OSD connects, says hello and receives; one more thread pings all OSDs. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bytes.h"
#include "gateway.h"
#include "log.h"
#include "net.h"

#define RETRY_MS 50
#define PING_MS 1000

static bool stopping_after(struct gateway *gateway, unsigned ms)
{
	struct timespec deadline = deadline_in(ms);
	bool stopping;
	int rc = 0;

	pthread_mutex_lock(&gateway->lock);
	while (!gateway->stopping && rc == 0)
		rc = pthread_cond_timedwait(&gateway->changed, &gateway->lock, &deadline);
	stopping = gateway->stopping;
	pthread_mutex_unlock(&gateway->lock);
	return stopping;
}

static int find_address(const struct osd_session *session, char address[ADDRESS_BYTES])
{
	const char *given = session->gateway->options.osd[session->id];

	if (given[0] == '@')
		return ready_read(given + 1, address);
	snprintf(address, ADDRESS_BYTES, "%s", given);
	return 0;
}

static void hear(struct osd_session *session)
{
	pthread_mutex_lock(&session->gateway->lock);
	clock_gettime(CLOCK_MONOTONIC, &session->heard);
	pthread_mutex_unlock(&session->gateway->lock);
}

static bool take(struct osd_session *session, struct msg *msg)
{
	bool known = true;

	hear(session);
	if (msg->type == MSG_OSD_OP_REPLY)
		objecter_take_reply(session, msg);
	else if (msg->type == MSG_RECOVERED)
		monitor_recovered(session, msg);
	else
		known = msg->type == MSG_PONG;
	msg_clear(msg);
	return known;
}

/* Sends the hello and receives the answer; if this returns true, the caller owns the answer's data. */
static bool greet(struct osd_session *session, struct conn *conn, struct msg *answer)
{
	struct msg hello = {.type = MSG_HELLO};

	if (conn_send(conn, &hello) != 0 || conn_receive(conn, answer) != 0)
		return false;
	if (answer->type == MSG_HELLO_REPLY && answer->data_len >= 8 && answer->result == (int32_t)session->id)
		return true;
	log_line("failed to greet osd.%u at %s: osd.%" PRId32 " answered", session->id, session->address,
		 answer->result);
	msg_clear(answer);
	return false;
}

static void serve(struct osd_session *session, struct conn *conn)
{
	struct msg msg;

	if (!greet(session, conn, &msg))
		return;
	session->store_id = get_u64(msg.data);
	session->boot = msg.version;
	hear(session);
	monitor_osd_up(session, conn, msg.data + 8, msg.data_len - 8);
	msg_clear(&msg);
	while (conn_receive(conn, &msg) == 0)
		if (!take(session, &msg))
			break;
	conn_shutdown(conn);
	monitor_osd_down(session);
}

/* Records the connection so that osd_sessions_stop() can shut it down; false: the gateway is stopping already. */
static bool link_up(struct osd_session *session, struct conn *conn)
{
	struct gateway *gateway = session->gateway;
	bool stopping;

	pthread_mutex_lock(&gateway->lock);
	stopping = gateway->stopping;
	session->link = stopping ? NULL : conn;
	pthread_mutex_unlock(&gateway->lock);
	return !stopping;
}

static void link_down(struct osd_session *session)
{
	pthread_mutex_lock(&session->gateway->lock);
	session->link = NULL;
	pthread_mutex_unlock(&session->gateway->lock);
}

static void *session_thread(void *arg)
{
	struct osd_session *session = arg;

	do {
		struct conn *conn;
		int fd = find_address(session, session->address);

		if (fd == 0)
			fd = net_connect(session->address);
		conn = fd >= 0 ? conn_new(fd) : NULL;
		if (conn && link_up(session, conn)) {
			serve(session, conn);
			link_down(session);
		}
		conn_release(conn);
	} while (!stopping_after(session->gateway, RETRY_MS));
	return NULL;
}

static long elapsed_ms(const struct timespec *since)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - since->tv_sec) * 1000 + (now.tv_nsec - since->tv_nsec) / 1000000;
}

static void ping(struct osd_session *session)
{
	struct gateway *gateway = session->gateway;
	struct msg msg = {.type = MSG_PING};
	struct conn *conn;
	long silent_ms;

	pthread_mutex_lock(&gateway->lock);
	conn = session->conn ? conn_hold(session->conn) : NULL;
	silent_ms = elapsed_ms(&session->heard);
	pthread_mutex_unlock(&gateway->lock);
	if (!conn)
		return;
	if (silent_ms > (long)gateway->options.osd_timeout_ms) {
		log_line("osd.%u has been silent for %ld ms", session->id, silent_ms);
		conn_shutdown(conn);
	} else {
		conn_send(conn, &msg);
	}
	conn_release(conn);
}

static void *ping_thread(void *arg)
{
	struct gateway *gateway = arg;

	while (!stopping_after(gateway, PING_MS))
		for (unsigned n = 0; n < gateway->options.osd_count; n++)
			ping(&gateway->osds[n]);
	return NULL;
}

void osd_sessions_start(struct gateway *gateway)
{
	for (unsigned n = 0; n < gateway->options.osd_count; n++) {
		struct osd_session *session = &gateway->osds[n];

		session->gateway = gateway;
		session->id = n;
		if (pthread_create(&session->thread, NULL, session_thread, session) != 0)
			die("failed to start a thread for osd.%u", n);
	}
	if (pthread_create(&gateway->pinger, NULL, ping_thread, gateway) != 0)
		die("failed to start the pinging thread");
}

void osd_sessions_stop(struct gateway *gateway)
{
	pthread_mutex_lock(&gateway->lock);
	for (unsigned n = 0; n < gateway->options.osd_count; n++)
		if (gateway->osds[n].link)
			conn_shutdown(gateway->osds[n].link);
	pthread_mutex_unlock(&gateway->lock);
	for (unsigned n = 0; n < gateway->options.osd_count; n++)
		pthread_join(gateway->osds[n].thread, NULL);
	pthread_join(gateway->pinger, NULL);
}
