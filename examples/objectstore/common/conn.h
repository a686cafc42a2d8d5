/* conn.h - a connection that several threads send on and one receives from. */
#ifndef OBJSTORE_CONN_H
#define OBJSTORE_CONN_H

#include <pthread.h>
#include <stdatomic.h>

#include "msg.h"

struct conn {
	int fd;
	pthread_mutex_t send_lock;
	atomic_int holders;
};

/* Takes ownership of fd; the caller is the one holder. NULL when memory is short; fd is then closed. */
struct conn *conn_new(int fd);
struct conn *conn_hold(struct conn *conn);
/* The last holder closes the descriptor. NULL is fine. */
void conn_release(struct conn *conn);

/* 0 or -errno; after an error the connection is shut down, and its receiver finds out. */
int conn_send(struct conn *conn, const struct msg *msg);
int conn_receive(struct conn *conn, struct msg *msg);
/* Wakes the receiver with an end of file. */
void conn_shutdown(struct conn *conn);

#endif
