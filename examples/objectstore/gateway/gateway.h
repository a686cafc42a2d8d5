/*
 * gateway.h - the client side of the store, in the layers of the reference trace.
 *
 *   client ─▶ vlmc.c ─▶ mapper.c           which placement group
 *                └────▶ radosd.c ─▶ objecter.c ─▶ osd_session.c ─▶ primary OSD
 *                                        ▲
 *                          monitor.c ────┘      who is up, who is complete; sends the map to all OSDs
 *
 * One lock guards the map, the sessions and the requests. It may be held while sending to an OSD: an OSD always
 * reads (see osd/osd.h), and a send to an OSD that does not read fails after five seconds.
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
	struct conn *conn; /* the same, from the OSD's hello on, while it may be used */
	struct timespec heard;
	bool refused; /* the refusal has been logged */
	/* from the OSD's hello */
	uint64_t store_id, boot;
	char address[ADDRESS_BYTES];
};

/* One operation on its way to an OSD and back. */
struct request {
	struct request *prev, *next;
	const struct msg *op; /* the client's message */
	uint64_t tid;
	unsigned pg;
	int target;       /* OSD to which it was sent; -1: none */
	unsigned sent;    /* how often it was sent */
	bool any_replica; /* the primary's copy is damaged: read the replica's */
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
	bool adopted;     /* until then: `map` comes from an OSD */
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
/* The OSD of this session has answered the hello; map: the last one it saw, or none. */
void monitor_osd_up(struct osd_session *session, struct conn *conn, const unsigned char *map, size_t map_len);
void monitor_osd_down(struct osd_session *session);
void monitor_recovered(struct osd_session *session, const struct msg *msg);
/* Called with the lock held when no request of the group is under way. */
void monitor_group_at_rest(struct gateway *gateway, unsigned pg);
/* Fills text with a JSON object; if flags say so, first waits, for at most timeout_ms. 0 or -ETIMEDOUT. */
int monitor_status(struct gateway *gateway, unsigned flags, unsigned timeout_ms, char *text, size_t max);

/* osd_session.c */
void osd_sessions_start(struct gateway *gateway);
void osd_sessions_stop(struct gateway *gateway);

/* objecter.c; `radosd` is the caller's span. Returns the result; *reply owns its data. */
int objecter_run(struct gateway *gateway, const struct msg *op, unsigned pg, const span *radosd, struct msg *reply);
void objecter_take_reply(struct osd_session *session, struct msg *reply);
/* Both with the lock held. osd_down: requests sent to that OSD will not be answered. new_map: send requests that have no
 * OSD, or another one by the new map. */
void objecter_osd_down(struct gateway *gateway, unsigned osd);
void objecter_new_map(struct gateway *gateway);

/* mapper.c, radosd.c, vlmc.c */
unsigned mapper_find(struct gateway *gateway, const struct msg *op, const span *vlmc);
int radosd_run(struct gateway *gateway, const struct msg *op, unsigned pg, const span *vlmc, struct msg *reply);
/* Serves one client operation; false when the connection cannot be used any more. */
bool vlmc_serve(struct gateway *gateway, struct conn *conn, const struct msg *op);

/* clients.c */
struct clients;
struct clients *clients_start(struct gateway *gateway, int listener);
void clients_stop(struct clients *clients);

/* The CLOCK_MONOTONIC time `ms` milliseconds from now, for conditions made by condition_init(). */
struct timespec deadline_in(unsigned ms);
void condition_init(pthread_cond_t *condition);

#endif
