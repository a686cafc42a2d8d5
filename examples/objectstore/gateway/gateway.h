/*
 * gateway.h - the client side of the store, in the layers of the reference trace.
 *
 *   client ─▶ vlmc.c ─▶ mapper.c           which placement group
 *                └────▶ radosd.c ─▶ objecter.c ─▶ osd_session.c ─▶ primary OSD
 *                                        ▲
 *                          monitor.c ────┘      who is up, who is complete; tells everybody
 *
 * One lock guards the map, the sessions and the requests. It may be held while sending to an OSD: an OSD always
 * reads (see osd/osd.h), and a send to one that does not ends after five seconds.
 */
#ifndef OBJSTORE_GATEWAY_H
#define OBJSTORE_GATEWAY_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "conn.h"
#include "msg.h"
#include "osdmap.h"

#define MAX_CLIENTS 256

struct gateway;

struct gateway_options {
	const char *dir;
	const char *host;
	int port;
	const char *ready_file;
	const char *osd[MAX_OSDS]; /* "host:port" or "@FILE" */
	unsigned osd_count;
	unsigned pgs; /* 0: not given */
	unsigned op_timeout_ms;
	unsigned osd_timeout_ms;
};

/* The connection to one OSD, and the thread that keeps it. */
struct osd_session {
	struct gateway *gateway;
	unsigned id;
	pthread_t thread;
	struct conn *link; /* NULL: not connected */
	struct conn *conn; /* the same once the OSD has greeted, while it may be used */
	struct timespec heard;
	bool refused; /* said so already */
	/* what it said */
	uint64_t store_id, boot;
	char address[ADDRESS_BYTES];
};

/* One operation on its way to an OSD and back. */
struct request {
	struct request *prev, *next;
	const struct msg *op; /* the client's */
	uint64_t tid;
	unsigned pg;
	int target;       /* OSD that has it; -1: none */
	unsigned sent;    /* how often */
	bool any_replica; /* the primary's copy is damaged */
	bool done;
	struct msg reply;
	pthread_cond_t finished;
	span librados;
	span message;
	bool message_open;
};

struct client;

struct gateway {
	struct gateway_options options;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t changed; /* the map, or stopping */
	bool stopping;
	bool established; /* there is a map */
	bool adopted;     /* while not: an OSD had one */
	struct osdmap map;
	struct osd_session osds[MAX_OSDS];
	struct request *first, *last;
	unsigned requests_of_pg[MAX_PGS];
	uint64_t next_tid;

	pthread_t pinger;
	struct blkin_endpoint vlmc, mapper, radosd, ioctx, objecter, mosdopreply;
};

/* monitor.c */
void monitor_load(struct gateway *gateway);
/* The OSD of this session has said hello; map: the last one it saw, or none. */
void monitor_osd_up(struct osd_session *session, struct conn *conn, const unsigned char *map, size_t map_len);
void monitor_osd_down(struct osd_session *session);
void monitor_recovered(struct osd_session *session, const struct msg *msg);
/* With the lock: no request of the group is under way. */
void monitor_group_at_rest(struct gateway *gateway, unsigned pg);
/* Fills text with a JSON object; waits first, for at most timeout_ms, when flags say so. 0 or -ETIMEDOUT. */
int monitor_status(struct gateway *gateway, unsigned flags, unsigned timeout_ms, char *text, size_t max);

/* osd_session.c */
void osd_sessions_start(struct gateway *gateway);
void osd_sessions_stop(struct gateway *gateway);

/* objecter.c; the caller's span is radosd's. Returns the result; *reply owns its data. */
int objecter_run(struct gateway *gateway, const struct msg *op, unsigned pg, const span *radosd, struct msg *reply);
void objecter_take_reply(struct osd_session *session, struct msg *reply);
/* With the lock: (re)send whatever the new map sends elsewhere; osd_down: nothing sent to it will be answered. */
void objecter_osd_down(struct gateway *gateway, unsigned osd);
void objecter_new_map(struct gateway *gateway);

/* mapper.c, radosd.c, vlmc.c */
unsigned mapper_find(struct gateway *gateway, const struct msg *op, const span *vlmc);
int radosd_run(struct gateway *gateway, const struct msg *op, unsigned pg, const span *vlmc, struct msg *reply);
/* Serves one client operation; false when the connection is of no more use. */
bool vlmc_serve(struct gateway *gateway, struct conn *conn, const struct msg *op);

/* clients.c */
struct clients;
struct clients *clients_start(struct gateway *gateway, int listener);
void clients_stop(struct clients *clients);

/* A CLOCK_MONOTONIC time so many milliseconds from now, for conditions made by condition_init(). */
struct timespec deadline_in(unsigned ms);
void condition_init(pthread_cond_t *condition);

#endif
