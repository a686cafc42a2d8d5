/* index.h - the objects of one placement group by name; the caller holds the group's lock. */
#ifndef OBJSTORE_INDEX_H
#define OBJSTORE_INDEX_H

#include "store.h"

struct object *index_find(struct store_pg *pg, const char *name);
/* Adds or replaces; 0 or -ENOMEM. */
int index_set(struct store_pg *pg, const char *name, const struct object_version *is, bool deleted);
void index_remove(struct store_pg *pg, const char *name);
void index_drop_tombstones(struct store_pg *pg);
uint64_t index_last_version(struct store_pg *pg);
const struct object *index_find_version(const struct store_pg *pg, uint64_t version);
int index_list(struct store_pg *pg, const char *after, struct listed **list, size_t *count);
void index_free(struct store_pg *pg);

#endif
