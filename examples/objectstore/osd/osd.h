/*
 * osd.h - one object storage daemon: declarations shared by its parts.
 *
 *   connection ─▶ session.c ─▶ dispatch.c ─▶ queue per shard ─▶ pg.c ─▶ journal.c ─▶ queue per shard ─▶ store.c
 *                                                                │                     (finish.c)
 *                                                                └─▶ peer.c ─▶ the replica
 *
 * Rules against deadlock and disorder:
 *  - A thread that receives never waits for a pg lock or for a full queue, so every connection is always read
 *    and every send ends.
 *  - A placement group belongs to one dispatch thread and one filestore thread: its writes stay in order.
 *  - Locks are taken in this order: pg, peer or journal, queue. While map_lock is held, only queue locks are taken.
 */
#ifndef OBJSTORE_OSD_H
#define OBJSTORE_OSD_H

#include <stdatomic.h>

#include "conn.h"
#include "journal.h"
#include "msg.h"
#include "osdmap.h"
#include "queue.h"
#include "store.h"

#define MAX_THREADS 16
#define MAX_CLIENT_OPS 512 /* in one OSD at a time; more are answered with -EAGAIN */

struct osd;

/* A request on its way through the daemon. */
struct op {
	struct link link; /* in one queue or list at a time */
	struct op *prev, *next; /* among the group's operations in flight */
	struct osd *osd;
	struct pg *pg;
	struct conn *conn; /* where the answer goes */
	struct msg msg;
	uint64_t version;
	struct journal_entry entry;
	bool begun;           /* its first events have been recorded */
	bool in_flight;       /* in the group's list */
	bool waiting_replica; /* the replica has not confirmed yet */
	bool committed;       /* in our journal */
	bool applied;         /* in our store */
	bool replied;         /* the commit has been sent, or nobody waits for it any more */
	span message;         /* the message that brought it */
	span handling;        /* "OSD Handling op" */
	span sub_op;          /* the message to the replica */
	span journal;
};

struct pg {
	pthread_mutex_t lock;
	unsigned id;
	struct pg_entry entry; /* from the map */
	uint32_t epoch;        /* of that map */
	uint64_t last_version; /* assigned here, or received from the primary */
	struct op *first, *last; /* writes in flight, by version */
	struct list waiting;     /* operations that wait for a write in flight, or for a barrier */
	unsigned barriers;       /* listings that wait until no write is in flight */
	unsigned peer_session;   /* peer connection on which the writes in flight have been sent */
	uint32_t recovered;      /* state_since of the refill that was completed */
	char name[16];
	struct blkin_endpoint endpoint;
};

struct peer {
	struct osd *osd;
	unsigned id;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	char address[ADDRESS_BYTES]; /* empty: the map says it is down */
	struct conn *conn;           /* NULL: not connected */
	unsigned session;            /* counts connections */
	bool stopping;
};

struct osd_options {
	int id;
	const char *dir;
	const char *host;
	int port;
	const char *ready_file;
	unsigned op_threads;
	unsigned filestore_threads;
	unsigned delay_journal_us;
	size_t segment_bytes;
};

struct osd {
	struct osd_options options;
	uint64_t store_id;
	uint64_t boot;
	struct store store;
	struct journal journal;
	struct pg pgs[MAX_PGS];
	struct queue dispatch[MAX_THREADS];
	struct queue filestore[MAX_THREADS];
	struct queue maps;
	pthread_t dispatch_threads[MAX_THREADS], filestore_threads[MAX_THREADS], map_thread, recovery_thread;
	struct peer peers[MAX_OSDS];
	unsigned peer_count; /* peers with a thread */
	atomic_uint client_ops;

	pthread_mutex_t map_lock; /* guards what follows */
	pthread_cond_t map_changed;
	struct osdmap map; /* epoch 0: none from the gateway yet */
	struct list for_newer_map;
	struct conn *gateway;
	struct conn *refill; /* the recovery thread's connection to a primary */
	bool stopping;

	/* names and endpoints in traces; set before threads start */
	char name[16], journal_name[600], filestore_name[600];
	struct blkin_endpoint self, journal_ep, filestore_ep, mosdopreply_ep,
		mosdsubopreply_ep;
	char waiting_for[MAX_OSDS][48];
};

/* op.c */
struct op *op_new(struct osd *osd, struct conn *conn, const struct msg *msg);
void op_free(struct op *op);
void op_event(const struct op *op, const char *event);    /* endpoint osd.N */
void op_event_pg(const struct op *op, const char *event); /* endpoint pg X.Y */

/* dispatch.c: from a received message to the thread of its placement group. */
void dispatch(struct op *op);
void *dispatch_thread(void *queue);
unsigned dispatch_shard(const struct osd *osd, unsigned pg);

/* pg.c: an operation in its placement group; all with the group's lock held. */
void pg_init(struct osd *osd, unsigned id);
void pg_handle(struct op *op);
void pg_take_map(struct osd *osd, struct pg *pg, const struct osdmap *map);
void pg_requeue_waiting(struct pg *pg, struct osd *osd);
void pg_finish_if_done(struct op *op);

/* replica.c: a write on the replica, and its answer on the primary. */
void replica_write(struct op *op);
void replica_reply(struct op *op, int result);
void primary_hears_replica(struct op *reply);

/* finish.c: hooks of the journal, and the filestore threads behind it. */
extern const struct journal_hooks osd_journal_hooks;
void submit_write(struct op *op);
void *filestore_thread(void *queue);

/* reply.c */
void reply_to_gateway(struct op *op, uint16_t flags, int result, const struct msg *answer);

/* peer.c: the connection on which this OSD, as a primary, sends writes to a replica. */
void peer_start(struct osd *osd, unsigned id);
void peer_stop(struct peer *peer);    /* ends its thread */
void peer_destroy(struct peer *peer); /* call once no thread sends any more */
void peer_take_address(struct peer *peer, bool up, const char *address);
void peer_send_sub_op(struct op *op); /* pg lock held */

/* map.c */
void *map_thread(void *osd);
uint32_t map_epoch(struct osd *osd);
int map_load(struct osd *osd, unsigned char *bytes, size_t *len);

/* serve_recovery.c: the primary's side of a refill. */
#define LISTED_BYTES 17 /* length of the name, version, size, CRC; then the name */
void serve_listing(struct op *op);
void serve_pull(struct op *op);

/* recover.c: which groups to refill; refill.c: one of them, from its primary. */
void *recovery_thread(void *osd);
int refill(struct osd *osd, struct conn *primary, unsigned pg, uint32_t epoch, uint32_t since);

/* session.c */
struct sessions;
struct sessions *sessions_start(struct osd *osd, int listener);
void sessions_stop(struct sessions *sessions);

#endif
