/* index.c - a chained hash table that doubles when it has as many objects as buckets. */
#include "index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"

#define FIRST_BUCKETS 64

static struct object **slot_of(struct store_pg *pg, const char *name)
{
	struct object **slot;

	if (!pg->buckets)
		return NULL;
	slot = &pg->buckets[crc32c(0, name, strlen(name)) & (pg->bucket_count - 1)];
	while (*slot && strcmp((*slot)->name, name) != 0)
		slot = &(*slot)->next;
	return slot;
}

struct object *index_find(struct store_pg *pg, const char *name)
{
	struct object **slot = slot_of(pg, name);

	return slot ? *slot : NULL;
}

static int grow(struct store_pg *pg)
{
	size_t old_count = pg->bucket_count, new_count = old_count ? old_count * 2 : FIRST_BUCKETS;
	struct object **old = pg->buckets, **new = calloc(new_count, sizeof *new);

	if (!new)
		return -ENOMEM;
	pg->buckets = new;
	pg->bucket_count = new_count;
	for (size_t n = 0; n < old_count; n++)
		while (old[n]) {
			struct object *object = old[n];
			old[n] = object->next;
			object->next = NULL;
			*slot_of(pg, object->name) = object;
		}
	free(old);
	return 0;
}

int index_set(struct store_pg *pg, const char *name, const struct object_version *is, bool deleted)
{
	struct object *object = index_find(pg, name);
	size_t bytes = strlen(name) + 1;

	if (!object) {
		if (pg->objects >= pg->bucket_count && grow(pg) != 0)
			return -ENOMEM;
		object = calloc(1, sizeof *object + bytes);
		if (!object)
			return -ENOMEM;
		memcpy(object->name, name, bytes);
		*slot_of(pg, name) = object;
		pg->objects++;
	}
	object->version = is->version;
	object->size = is->size;
	object->crc = is->crc;
	object->deleted = deleted;
	return 0;
}

static void unlink_object(struct store_pg *pg, struct object **slot)
{
	struct object *object = *slot;

	*slot = object->next;
	free(object);
	pg->objects--;
}

void index_remove(struct store_pg *pg, const char *name)
{
	struct object **slot = slot_of(pg, name);

	if (slot && *slot)
		unlink_object(pg, slot);
}

void index_drop_tombstones(struct store_pg *pg)
{
	for (size_t n = 0; n < pg->bucket_count; n++)
		for (struct object **slot = &pg->buckets[n]; *slot;) {
			if ((*slot)->deleted)
				unlink_object(pg, slot);
			else
				slot = &(*slot)->next;
		}
}

uint64_t index_last_version(struct store_pg *pg)
{
	uint64_t last = 0;

	for (size_t n = 0; n < pg->bucket_count; n++)
		for (struct object *object = pg->buckets[n]; object; object = object->next)
			if (object->version > last)
				last = object->version;
	return last;
}

const struct object *index_find_version(const struct store_pg *pg, uint64_t version)
{
	for (size_t n = 0; n < pg->bucket_count; n++)
		for (const struct object *object = pg->buckets[n]; object; object = object->next)
			if (object->version == version && !object->deleted)
				return object;
	return NULL;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct listed *)a)->name, ((const struct listed *)b)->name);
}

static int list_object(struct listed *to, const struct object *object)
{
	to->name = strdup(object->name);
	to->is = (struct object_version){object->version, object->size, object->crc};
	return to->name ? 0 : -ENOMEM;
}

int index_list(struct store_pg *pg, const char *after, struct listed **list, size_t *count)
{
	*count = 0;
	*list = calloc(pg->objects + 1, sizeof **list);
	if (!*list)
		return -ENOMEM;
	for (size_t n = 0; n < pg->bucket_count; n++)
		for (struct object *object = pg->buckets[n]; object; object = object->next) {
			if (object->deleted || strcmp(object->name, after) <= 0)
				continue;
			if (list_object(&(*list)[*count], object) != 0) {
				store_list_free(*list, *count);
				*list = NULL;
				*count = 0;
				return -ENOMEM;
			}
			(*count)++;
		}
	qsort(*list, *count, sizeof **list, by_name);
	return 0;
}

void index_free(struct store_pg *pg)
{
	for (size_t n = 0; n < pg->bucket_count; n++)
		while (pg->buckets[n])
			unlink_object(pg, &pg->buckets[n]);
	free(pg->buckets);
	pg->buckets = NULL;
	pg->bucket_count = 0;
}
