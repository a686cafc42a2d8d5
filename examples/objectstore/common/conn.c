/* conn.c - reference counted, because a reply may be sent after the thread that received the request has ended. */
#include "conn.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

struct conn *conn_new(int fd)
{
	struct conn *conn = malloc(sizeof *conn);

	if (!conn) {
		close(fd);
		return NULL;
	}
	conn->fd = fd;
	pthread_mutex_init(&conn->send_lock, NULL);
	atomic_init(&conn->holders, 1);
	return conn;
}

struct conn *conn_hold(struct conn *conn)
{
	atomic_fetch_add(&conn->holders, 1);
	return conn;
}

void conn_release(struct conn *conn)
{
	if (!conn || atomic_fetch_sub(&conn->holders, 1) != 1)
		return;
	close(conn->fd);
	pthread_mutex_destroy(&conn->send_lock);
	free(conn);
}

int conn_send(struct conn *conn, const struct msg *msg)
{
	int rc;

	pthread_mutex_lock(&conn->send_lock);
	rc = msg_send(conn->fd, msg);
	pthread_mutex_unlock(&conn->send_lock);
	if (rc != 0)
		conn_shutdown(conn); /* half a message may have been sent: nothing can follow it */
	return rc;
}

int conn_receive(struct conn *conn, struct msg *msg)
{
	return msg_receive(conn->fd, msg);
}

void conn_shutdown(struct conn *conn)
{
	shutdown(conn->fd, SHUT_RDWR);
}
