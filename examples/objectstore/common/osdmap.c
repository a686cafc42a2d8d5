/* osdmap.c - the transitions drawn in osdmap.h, and the map's encoding as bytes. */
#include "osdmap.h"

#include <errno.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"

static unsigned home_of(const struct osdmap *map, unsigned pg)
{
	return pg % map->osd_count;
}

static unsigned second_home_of(const struct osdmap *map, unsigned pg)
{
	unsigned step = 1 + pg / map->osd_count % (map->osd_count - 1u);

	return (home_of(map, pg) + step) % map->osd_count;
}

void osdmap_create(struct osdmap *map, unsigned osds, unsigned pgs)
{
	memset(map, 0, sizeof *map);
	map->epoch = 1;
	map->osd_count = (uint16_t)osds;
	map->pg_count = (uint16_t)pgs;
	for (unsigned pg = 0; pg < pgs; pg++)
		map->pg[pg] = (struct pg_entry){
			.primary = (uint8_t)home_of(map, pg),
			.replica = (uint8_t)second_home_of(map, pg),
			.state = REPLICA_COMPLETE,
			.primary_since = 1,
			.state_since = 1,
		};
}

unsigned osdmap_pg_of(const struct osdmap *map, const char *object)
{
	return crc32c(0, object, strlen(object)) % map->pg_count;
}

static void set_state(struct osdmap *map, struct pg_entry *pg, enum replica_state state)
{
	pg->state = (uint8_t)state;
	pg->state_since = map->epoch + 1;
}

static void swap_roles(struct osdmap *map, struct pg_entry *pg)
{
	uint8_t primary = pg->primary;

	pg->primary = pg->replica;
	pg->replica = primary;
	pg->primary_since = map->epoch + 1;
}

static bool settle(struct osdmap *map, struct pg_entry *pg)
{
	bool primary_up = map->osd[pg->primary].up, replica_up = map->osd[pg->replica].up;

	if (!primary_up && replica_up && pg->state == REPLICA_COMPLETE) {
		swap_roles(map, pg);
		set_state(map, pg, REPLICA_ABSENT);
		return true;
	}
	if (!primary_up && pg->state == REPLICA_RECOVERING) {
		set_state(map, pg, REPLICA_ABSENT);
		return true;
	}
	if (primary_up && !replica_up && pg->state != REPLICA_ABSENT) {
		set_state(map, pg, REPLICA_ABSENT);
		return true;
	}
	if (primary_up && replica_up && pg->state == REPLICA_ABSENT) {
		set_state(map, pg, REPLICA_RECOVERING);
		return true;
	}
	return false;
}

static void settle_all(struct osdmap *map)
{
	for (unsigned pg = 0; pg < map->pg_count; pg++)
		settle(map, &map->pg[pg]);
	map->epoch++;
}

/* The OSD's directory is new, so it holds nothing, whatever the map says. */
static void forget_contents(struct osdmap *map, unsigned osd)
{
	for (unsigned n = 0; n < map->pg_count; n++) {
		struct pg_entry *pg = &map->pg[n];
		if (pg->primary == osd && pg->state == REPLICA_COMPLETE)
			swap_roles(map, pg);
		if (pg->replica == osd)
			set_state(map, pg, REPLICA_ABSENT);
	}
}

bool osdmap_would_lose(const struct osdmap *map, unsigned osd, uint64_t store_id)
{
	if (map->osd[osd].store_id == 0 || map->osd[osd].store_id == store_id)
		return false;
	for (unsigned n = 0; n < map->pg_count; n++)
		if (map->pg[n].primary == osd && map->pg[n].state != REPLICA_COMPLETE)
			return true;
	return false;
}

bool osdmap_osd_up(struct osdmap *map, unsigned osd, uint64_t store_id, uint64_t boot, const char *address)
{
	struct osd_entry *entry = &map->osd[osd];

	if (entry->up && entry->boot == boot && strcmp(entry->address, address) == 0)
		return false;
	if (entry->up)
		osdmap_osd_down(map, osd);
	if (entry->store_id != 0 && entry->store_id != store_id)
		forget_contents(map, osd);
	entry->up = true;
	entry->store_id = store_id;
	entry->boot = boot;
	memset(entry->address, 0, sizeof entry->address);
	strncpy(entry->address, address, sizeof entry->address - 1);
	settle_all(map);
	return true;
}

bool osdmap_osd_down(struct osdmap *map, unsigned osd)
{
	if (!map->osd[osd].up)
		return false;
	map->osd[osd].up = false;
	settle_all(map);
	return true;
}

bool osdmap_recovered(struct osdmap *map, unsigned osd, unsigned pg, uint32_t state_since)
{
	struct pg_entry *entry;

	if (pg >= map->pg_count)
		return false;
	entry = &map->pg[pg];
	if (entry->replica != osd || entry->state != REPLICA_RECOVERING || entry->state_since != state_since)
		return false;
	set_state(map, entry, REPLICA_COMPLETE);
	map->epoch++;
	return true;
}

bool osdmap_is_home(const struct osdmap *map, unsigned pg)
{
	return map->pg[pg].primary == home_of(map, pg);
}

bool osdmap_return_home(struct osdmap *map, unsigned pg)
{
	struct pg_entry *entry = &map->pg[pg];

	if (osdmap_is_home(map, pg) || entry->state != REPLICA_COMPLETE || !map->osd[entry->replica].up)
		return false;
	swap_roles(map, entry);
	map->epoch++;
	return true;
}

bool osdmap_is_clean(const struct osdmap *map)
{
	for (unsigned pg = 0; pg < map->pg_count; pg++)
		if (map->pg[pg].state != REPLICA_COMPLETE || !map->osd[map->pg[pg].primary].up ||
		    !map->osd[map->pg[pg].replica].up || !osdmap_is_home(map, pg))
			return false;
	return true;
}

#define MAP_HEADER_BYTES 8
#define OSD_BYTES (17 + ADDRESS_BYTES)
#define PG_BYTES 11

size_t osdmap_encode(const struct osdmap *map, unsigned char out[OSDMAP_MAX_BYTES])
{
	unsigned char *at = out;

	put_u32(at, map->epoch);
	put_u16(at + 4, map->osd_count);
	put_u16(at + 6, map->pg_count);
	at += MAP_HEADER_BYTES;
	for (unsigned n = 0; n < map->osd_count; n++, at += OSD_BYTES) {
		at[0] = map->osd[n].up;
		put_u64(at + 1, map->osd[n].store_id);
		put_u64(at + 9, map->osd[n].boot);
		memcpy(at + 17, map->osd[n].address, ADDRESS_BYTES);
	}
	for (unsigned n = 0; n < map->pg_count; n++, at += PG_BYTES) {
		at[0] = map->pg[n].primary;
		at[1] = map->pg[n].replica;
		at[2] = map->pg[n].state;
		put_u32(at + 3, map->pg[n].primary_since);
		put_u32(at + 7, map->pg[n].state_since);
	}
	put_u32(at, crc32c(0, out, (size_t)(at - out)));
	return (size_t)(at - out) + 4;
}

static int decode_osds(struct osdmap *map, const unsigned char *at)
{
	for (unsigned n = 0; n < map->osd_count; n++, at += OSD_BYTES) {
		map->osd[n].up = at[0] != 0;
		map->osd[n].store_id = get_u64(at + 1);
		map->osd[n].boot = get_u64(at + 9);
		memcpy(map->osd[n].address, at + 17, ADDRESS_BYTES);
		if (map->osd[n].address[ADDRESS_BYTES - 1] != '\0')
			return -EBADMSG;
	}
	return 0;
}

static int decode_pgs(struct osdmap *map, const unsigned char *at)
{
	for (unsigned n = 0; n < map->pg_count; n++, at += PG_BYTES) {
		struct pg_entry *pg = &map->pg[n];
		pg->primary = at[0];
		pg->replica = at[1];
		pg->state = at[2];
		pg->primary_since = get_u32(at + 3);
		pg->state_since = get_u32(at + 7);
		if (pg->primary >= map->osd_count || pg->replica >= map->osd_count || pg->state > REPLICA_COMPLETE)
			return -EBADMSG;
	}
	return 0;
}

int osdmap_decode(struct osdmap *map, const unsigned char *data, size_t len)
{
	struct osdmap new = {0};
	size_t body;

	if (len < MAP_HEADER_BYTES + 4)
		return -EBADMSG;
	new.epoch = get_u32(data);
	new.osd_count = get_u16(data + 4);
	new.pg_count = get_u16(data + 6);
	if (new.osd_count < 2 || new.osd_count > MAX_OSDS || new.pg_count < 1 || new.pg_count > MAX_PGS)
		return -EBADMSG;
	body = MAP_HEADER_BYTES + (size_t)new.osd_count * OSD_BYTES + (size_t)new.pg_count * PG_BYTES;
	if (len != body + 4 || get_u32(data + body) != crc32c(0, data, body))
		return -EBADMSG;
	if (decode_osds(&new, data + MAP_HEADER_BYTES) != 0 ||
	    decode_pgs(&new, data + MAP_HEADER_BYTES + (size_t)new.osd_count * OSD_BYTES) != 0)
		return -EBADMSG;
	*map = new;
	return 0;
}
