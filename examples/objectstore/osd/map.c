/* map.c - one thread takes the gateway's maps: to disk, then to every placement group, then to waiting operations. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "atomic_file.h"
#include "log.h"
#include "osd.h"

static void map_path(const struct osd *osd, char path[600])
{
	snprintf(path, 600, "%s/osdmap", osd->options.dir);
}

uint32_t map_epoch(struct osd *osd)
{
	uint32_t epoch;

	pthread_mutex_lock(&osd->map_lock);
	epoch = osd->map.epoch;
	pthread_mutex_unlock(&osd->map_lock);
	return epoch;
}

int map_load(struct osd *osd, unsigned char *bytes, size_t *len)
{
	char path[600];
	ssize_t n;

	map_path(osd, path);
	n = atomic_file_read(path, bytes, OSDMAP_MAX_BYTES);
	*len = n > 0 ? (size_t)n : 0;
	return n >= 0 || n == -ENOENT ? 0 : (int)n;
}

static void go_on(struct osd *osd, struct op *op)
{
	op_event(op, "Handling op");
	op_event_pg(op, "Enqueuing op");
	op_event_pg(op, "Enqueued op"); /* recorded before the push, so that it precedes the events of the dispatch thread */
	queue_push(&osd->dispatch[dispatch_shard(osd, op->pg->id)], &op->link, NULL);
}

static void publish(struct osd *osd, const struct osdmap *map)
{
	struct list waiting;
	struct link *link;

	pthread_mutex_lock(&osd->map_lock);
	osd->map = *map;
	waiting = osd->for_newer_map;
	list_init(&osd->for_newer_map);
	while ((link = list_pop(&waiting)) != NULL) {
		struct op *op = ITEM_OF(link, struct op, link);
		if (op->msg.epoch > map->epoch)
			list_push(&osd->for_newer_map, link);
		else
			go_on(osd, op);
	}
	pthread_cond_broadcast(&osd->map_changed);
	pthread_mutex_unlock(&osd->map_lock);
}

static void start_missing_peers(struct osd *osd, const struct osdmap *map)
{
	for (; osd->peer_count < map->osd_count; osd->peer_count++)
		if ((int)osd->peer_count != osd->options.id)
			peer_start(osd, osd->peer_count);
}

static void tell_peers(struct osd *osd, const struct osdmap *map)
{
	start_missing_peers(osd, map);
	for (unsigned n = 0; n < map->osd_count; n++)
		if ((int)n != osd->options.id)
			peer_take_address(&osd->peers[n], map->osd[n].up, map->osd[n].address);
}

static void take_map(struct osd *osd, const struct msg *msg)
{
	struct osdmap map;
	char path[600];
	int rc = osdmap_decode(&map, msg->data, msg->data_len);

	if (rc != 0 || map.osd_count <= osd->options.id) {
		log_line("failed to read a map from the gateway: it is damaged, or has no osd.%d", osd->options.id);
		return;
	}
	if (map.epoch <= map_epoch(osd))
		return;
	map_path(osd, path);
	rc = atomic_file_write(path, msg->data, msg->data_len);
	if (rc != 0)
		die("failed to write %s: %s", path, strerror(-rc));
	for (unsigned n = 0; n < map.pg_count; n++) {
		pthread_mutex_lock(&osd->pgs[n].lock);
		pg_take_map(osd, &osd->pgs[n], &map);
		pthread_mutex_unlock(&osd->pgs[n].lock);
	}
	tell_peers(osd, &map); /* only after the groups know their peers */
	publish(osd, &map);
	log_line("map of epoch %" PRIu32, map.epoch);
}

void *map_thread(void *arg)
{
	struct osd *osd = arg;
	struct link *link;

	while ((link = queue_pop(&osd->maps)) != NULL) {
		struct op *op = ITEM_OF(link, struct op, link);
		take_map(osd, &op->msg);
		op_free(op);
	}
	return NULL;
}
