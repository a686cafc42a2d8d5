/*
 * monitor.c - the only place where the map changes. Each change is on the disk before it is sent to anyone.
 *
 * Without a map of its own the gateway waits for every OSD and goes on with the newest map that one of them saw.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "atomic_file.h"
#include "bytes.h"
#include "gateway.h"
#include "log.h"

static void map_path(const struct gateway *gateway, char path[600])
{
	snprintf(path, 600, "%s/osdmap", gateway->options.dir);
}

static void check_map(const struct gateway *gateway)
{
	const struct gateway_options *o = &gateway->options;

	if (gateway->map.osd_count != o->osd_count)
		die("failed to start: the map has %u OSDs, the command line %u", gateway->map.osd_count, o->osd_count);
	if (o->pgs != 0 && gateway->map.pg_count != o->pgs)
		die("failed to start: the map has %u placement groups, which --pgs cannot change", gateway->map.pg_count);
}

static void everybody_is_down(struct osdmap *map)
{
	for (unsigned n = 0; n < map->osd_count; n++)
		map->osd[n].up = false;
}

void monitor_load(struct gateway *gateway)
{
	unsigned char bytes[OSDMAP_MAX_BYTES];
	char path[600];
	ssize_t n;

	map_path(gateway, path);
	n = atomic_file_read(path, bytes, sizeof bytes);
	if (n == -ENOENT) {
		log_line("no map in %s: waiting for all %u OSDs", gateway->options.dir, gateway->options.osd_count);
		return;
	}
	if (n < 0 || osdmap_decode(&gateway->map, bytes, (size_t)n) != 0)
		die("failed to read %s: remove it to go on with the newest map the OSDs have", path);
	check_map(gateway);
	everybody_is_down(&gateway->map);
	gateway->established = true;
}

static void send_map(struct gateway *gateway, const unsigned char *bytes, size_t len)
{
	struct msg msg = {.type = MSG_MAP, .epoch = gateway->map.epoch};

	msg_set_data(&msg, bytes, (uint32_t)len);
	for (unsigned n = 0; n < gateway->options.osd_count; n++)
		if (gateway->osds[n].conn)
			conn_send(gateway->osds[n].conn, &msg);
}

static void publish(struct gateway *gateway)
{
	unsigned char bytes[OSDMAP_MAX_BYTES];
	size_t len = osdmap_encode(&gateway->map, bytes);
	char path[600];
	int rc;

	map_path(gateway, path);
	rc = atomic_file_write(path, bytes, len);
	if (rc != 0)
		die("failed to write %s: %s", path, strerror(-rc));
	send_map(gateway, bytes, len);
	objecter_new_map(gateway);
	pthread_cond_broadcast(&gateway->changed);
}

static void adopt(struct gateway *gateway, const unsigned char *bytes, size_t len)
{
	struct osdmap seen;

	if (osdmap_decode(&seen, bytes, len) != 0)
		return;
	if (!gateway->adopted || seen.epoch > gateway->map.epoch) {
		gateway->map = seen;
		gateway->adopted = true;
	}
}

static bool all_met(const struct gateway *gateway)
{
	for (unsigned n = 0; n < gateway->options.osd_count; n++)
		if (!gateway->osds[n].conn)
			return false;
	return true;
}

static bool establish(struct gateway *gateway)
{
	if (gateway->established)
		return true;
	if (!all_met(gateway))
		return false;
	if (gateway->adopted)
		check_map(gateway);
	else
		osdmap_create(&gateway->map, gateway->options.osd_count, gateway->options.pgs ? gateway->options.pgs : 32);
	everybody_is_down(&gateway->map);
	gateway->established = true;
	return true;
}

static void refuse_newer_map(struct gateway *gateway, const struct osd_session *session, const unsigned char *bytes,
			     size_t len)
{
	struct osdmap seen;

	if (osdmap_decode(&seen, bytes, len) == 0 && seen.epoch > gateway->map.epoch)
		die("osd.%u has seen a map of epoch %" PRIu32 ", ours is %" PRIu32
		    ": another gateway is in charge, or %s/osdmap is an old copy; if so, remove it",
		    session->id, seen.epoch, gateway->map.epoch, gateway->options.dir);
}

/* Closes the connection of an OSD that must not come up; it may try again with its old directory. */
static void take_up(struct gateway *gateway, struct osd_session *session)
{
	if (!session->conn)
		return;
	if (osdmap_would_lose(&gateway->map, session->id, session->store_id)) {
		if (!session->refused)
			log_line("osd.%u has come back empty, but it had the only complete copy of some objects: restore "
				 "its directory",
				 session->id);
		session->refused = true;
		conn_shutdown(session->conn);
		session->conn = NULL;
		return;
	}
	session->refused = false;
	osdmap_osd_up(&gateway->map, session->id, session->store_id, session->boot, session->address);
	log_line("osd.%u is up (epoch %" PRIu32 ")", session->id, gateway->map.epoch);
}

void monitor_osd_up(struct osd_session *session, struct conn *conn, const unsigned char *map, size_t map_len)
{
	struct gateway *gateway = session->gateway;

	pthread_mutex_lock(&gateway->lock);
	session->conn = conn;
	if (gateway->established) {
		refuse_newer_map(gateway, session, map, map_len);
		take_up(gateway, session);
		publish(gateway);
	} else {
		adopt(gateway, map, map_len);
		if (establish(gateway)) {
			for (unsigned n = 0; n < gateway->options.osd_count; n++)
				take_up(gateway, &gateway->osds[n]);
			publish(gateway);
		}
	}
	pthread_mutex_unlock(&gateway->lock);
}

void monitor_osd_down(struct osd_session *session)
{
	struct gateway *gateway = session->gateway;

	pthread_mutex_lock(&gateway->lock);
	session->conn = NULL;
	objecter_osd_down(gateway, session->id);
	if (gateway->established && !gateway->stopping && osdmap_osd_down(&gateway->map, session->id)) {
		log_line("osd.%u is down (epoch %" PRIu32 ")", session->id, gateway->map.epoch);
		publish(gateway);
	}
	pthread_mutex_unlock(&gateway->lock);
}

static bool return_groups_at_rest(struct gateway *gateway)
{
	bool any = false;

	for (unsigned n = 0; n < gateway->map.pg_count; n++)
		if (gateway->requests_of_pg[n] == 0)
			any |= osdmap_return_home(&gateway->map, n);
	return any;
}

void monitor_recovered(struct osd_session *session, const struct msg *msg)
{
	struct gateway *gateway = session->gateway;
	bool any = false;

	pthread_mutex_lock(&gateway->lock);
	for (uint32_t at = 0; at + 6 <= msg->data_len; at += 6)
		any |= osdmap_recovered(&gateway->map, session->id, get_u16(msg->data + at), get_u32(msg->data + at + 2));
	any |= return_groups_at_rest(gateway);
	if (any)
		publish(gateway);
	pthread_mutex_unlock(&gateway->lock);
}

void monitor_group_at_rest(struct gateway *gateway, unsigned pg)
{
	if (osdmap_return_home(&gateway->map, pg))
		publish(gateway);
}

static size_t write_status(const struct gateway *gateway, char *text, size_t max)
{
	const struct osdmap *map = &gateway->map;
	unsigned states[3] = {0}, unavailable = 0;
	size_t at;

	for (unsigned n = 0; n < map->pg_count; n++) {
		states[map->pg[n].state]++;
		unavailable += !map->osd[map->pg[n].primary].up;
	}
	at = (size_t)snprintf(text, max,
			      "{\"epoch\": %" PRIu32 ", \"clean\": %s, \"placement_groups\": {\"complete\": %u, "
			      "\"recovering\": %u, \"one_copy\": %u, \"unavailable\": %u}, \"annotations\": %" PRIu64
			      ", \"osds\": [",
			      map->epoch, gateway->established && osdmap_is_clean(map) ? "true" : "false",
			      states[REPLICA_COMPLETE], states[REPLICA_RECOVERING], states[REPLICA_ABSENT], unavailable,
			      trace_annotations());
	for (unsigned n = 0; n < map->osd_count && at < max; n++)
		at += (size_t)snprintf(text + at, max - at, "%s{\"id\": %u, \"up\": %s, \"address\": \"%s\"}", n ? ", " : "",
				       n, map->osd[n].up ? "true" : "false", map->osd[n].address);
	if (at < max)
		at += (size_t)snprintf(text + at, max - at, "]}");
	return at < max ? at : max - 1;
}

static bool is_awaited(const struct gateway *gateway, unsigned flags)
{
	bool clean = gateway->established && osdmap_is_clean(&gateway->map);

	if (flags & FLAG_WAIT_CLEAN)
		return clean;
	return !(flags & FLAG_WAIT_DEGRADED) || (gateway->established && !clean);
}

int monitor_status(struct gateway *gateway, unsigned flags, unsigned timeout_ms, char *text, size_t max)
{
	struct timespec deadline = deadline_in(timeout_ms);
	int rc = 0;

	pthread_mutex_lock(&gateway->lock);
	while (rc == 0 && !gateway->stopping && !is_awaited(gateway, flags))
		rc = -pthread_cond_timedwait(&gateway->changed, &gateway->lock, &deadline);
	write_status(gateway, text, max);
	pthread_mutex_unlock(&gateway->lock);
	return rc;
}
