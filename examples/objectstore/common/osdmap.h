/*
 * osdmap.h - which OSD keeps what: the OSDs, and for each placement group its primary and the state of its replica.
 *
 * Only the gateway changes the map; each change raises the epoch and is on the gateway's disk before it is sent to
 * anyone. So the map always records that an OSD took writes alone: its partner stays ABSENT until it has been
 * refilled.
 *
 *              replica down, primary up            refilled from the primary
 *   COMPLETE ────────────────────────────▶ ABSENT ─────▶ RECOVERING ─────▶ COMPLETE
 *      │                                  (both up)          │
 *      │ primary down, replica up: they change places        │ either goes down
 *      └───────────▶ ABSENT                                  └─────▶ ABSENT
 */
#ifndef OBJSTORE_OSDMAP_H
#define OBJSTORE_OSDMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net.h"

#define MAX_OSDS 16
#define MAX_PGS 256
#define OSDMAP_MAX_BYTES (16 + MAX_OSDS * (17 + ADDRESS_BYTES) + MAX_PGS * 11)
#define POOL 1 /* the one pool; placement groups are called "pg 1.7" */

enum replica_state { REPLICA_ABSENT, REPLICA_RECOVERING, REPLICA_COMPLETE };

struct osd_entry {
	bool up;
	uint64_t store_id; /* random number of its directory; 0: never seen */
	uint64_t boot;     /* random number of the process */
	char address[ADDRESS_BYTES];
};

struct pg_entry {
	uint8_t primary;
	uint8_t replica;
	uint8_t state;          /* of the replica */
	uint32_t primary_since; /* epoch of the last change of the primary */
	uint32_t state_since;   /* epoch of the last change of the state */
};

struct osdmap {
	uint32_t epoch;
	uint16_t osd_count;
	uint16_t pg_count;
	struct osd_entry osd[MAX_OSDS];
	struct pg_entry pg[MAX_PGS];
};

/* A new map of epoch 1: each placement group on two neighbouring OSDs. */
void osdmap_create(struct osdmap *map, unsigned osds, unsigned pgs);
unsigned osdmap_pg_of(const struct osdmap *map, const char *object);

/* True when this directory is new although the map says that osd holds the only complete copy of some placement group: the
 * OSD must then not come up. */
bool osdmap_would_lose(const struct osdmap *map, unsigned osd, uint64_t store_id);
/* Brings every placement group in line with who is up; true when something changed (the epoch is raised). */
bool osdmap_osd_up(struct osdmap *map, unsigned osd, uint64_t store_id, uint64_t boot, const char *address);
bool osdmap_osd_down(struct osdmap *map, unsigned osd);
bool osdmap_recovered(struct osdmap *map, unsigned osd, unsigned pg, uint32_t state_since);
/* Makes the OSD that osdmap_create() chose as primary of a placement group its primary again; true when changed. */
bool osdmap_return_home(struct osdmap *map, unsigned pg);
bool osdmap_is_home(const struct osdmap *map, unsigned pg);
/* Every placement group has both its copies. */
bool osdmap_is_clean(const struct osdmap *map);

size_t osdmap_encode(const struct osdmap *map, unsigned char out[OSDMAP_MAX_BYTES]);
/* 0, or -EBADMSG: the map is then unchanged. */
int osdmap_decode(struct osdmap *map, const unsigned char *data, size_t len);

#endif
