/*
 * store.h - the "filestore": one checksummed file per object, and an index of them in memory.
 *
 *   DIR/store/pg-007/o_NAME    header (magic, CRC of header and name, version, size, CRC of data), data
 *   DIR/store/pg-007/t_NAME    the same while it is being written; renamed over o_NAME
 *
 * Applying a write does not make it durable: the journal keeps every entry until store_sync() has returned.
 */
#ifndef OBJSTORE_STORE_H
#define OBJSTORE_STORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "osdmap.h"

struct object {
	struct object *next; /* in its hash bucket */
	uint64_t version;
	uint32_t size;
	uint32_t crc;
	bool deleted; /* a tombstone: kept only while the placement group is being refilled */
	char name[];
};

struct store_pg {
	pthread_mutex_t lock;
	struct object **buckets;
	size_t bucket_count;
	size_t objects; /* tombstones included */
	bool keep_tombstones;
	int dir; /* descriptor; -1 until the first object */
};

struct store {
	char path[512];
	int dir;
	struct store_pg pg[MAX_PGS];
};

struct object_version {
	uint64_t version;
	uint32_t size;
	uint32_t crc;
};

/* What a listing says about an object. */
struct listed {
	char *name; /* owned by the list */
	struct object_version is;
};

/* Opens or creates DIR/store and reads every header. 0 or -errno. An object whose header is damaged stays in the index, so
 * that it does not look absent; store_damaged() finds it. The journal or a refill replaces it if either has the object. */
int store_open(struct store *store, const char *dir);
void store_close(struct store *store);

/* Finds the path of an object whose header is damaged; false: there is none. */
bool store_damaged(struct store *store, unsigned pg, char *path, size_t max);
bool store_find(struct store *store, unsigned pg, const char *name, struct object_version *found);
/* Reads and verifies; *data is malloc'ed. 0, -ENOENT, -EIO when the checksum is wrong, or -errno. */
int store_read(struct store *store, unsigned pg, const char *name, unsigned char **data, struct object_version *is);

/*
 * Makes the object what `is` and data say (data NULL and size 0 is an empty object), unless the store already has
 * something as new. An object whose version is of an epoch before `suspect_before` counts as old whatever its
 * version. 0 or -errno.
 */
int store_put(struct store *store, unsigned pg, const char *name, const struct object_version *is,
	      const unsigned char *data, uint32_t suspect_before);
int store_delete(struct store *store, unsigned pg, const char *name, uint64_t version, uint32_t suspect_before);

/* keep: remember deletions, so that a refill that has just read an object does not bring it back. */
void store_keep_tombstones(struct store *store, unsigned pg, bool keep);

/* Lists the objects (no tombstones) with a name after `after`, sorted. Free *list with store_list_free(); it is NULL after
 * an error. */
int store_list(struct store *store, unsigned pg, const char *after, struct listed **list, size_t *count);
void store_list_free(struct listed *list, size_t count);

/* The highest version in the placement group. */
uint64_t store_last_version(struct store *store, unsigned pg);

/* Everything applied before the call is on the disk when it returns. 0 or -errno. */
int store_sync(struct store *store);

static inline uint32_t version_epoch(uint64_t version)
{
	return (uint32_t)(version >> 32);
}

#endif
