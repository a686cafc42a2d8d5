/* units.c - tests of the parts that need no cluster: checksum, messages, map, journal, store. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes.h"
#include "crc32c.h"
#include "journal.h"
#include "journal_format.h"
#include "msg.h"
#include "net.h"
#include "osdmap.h"
#include "store.h"

#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

static void crc_is_castagnoli(void)
{
	unsigned char zeros[32] = {0};

	CHECK(crc32c(0, "123456789", 9) == 0xE3069283u);
	CHECK(crc32c(0, zeros, sizeof zeros) == 0x8A9136AAu); /* RFC 3720, B.4 */
	CHECK(crc32c(crc32c(0, "12345", 5), "6789", 4) == 0xE3069283u);
}

static struct msg sample(const char *data)
{
	struct msg msg = {.type = MSG_OSD_OP,
			  .op = OP_PUT,
			  .tid = 0x0102030405060708u,
			  .epoch = 0x11121314u,
			  .pg = 0x2122,
			  .annotations = 113,
			  .version = 0x3132333435363738u,
			  .result = -2,
			  .flags = FLAG_ACK};

	msg_set_name(&msg, "some.object_1-a");
	msg_set_data(&msg, data, (uint32_t)strlen(data));
	return msg;
}

static void message_round_trips(void)
{
	struct msg sent = sample("hello"), got;
	int fds[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	CHECK(msg_send(fds[0], &sent) == 0);
	CHECK(msg_receive(fds[1], &got) == 0);
	CHECK(got.type == sent.type && got.op == sent.op && got.tid == sent.tid && got.epoch == sent.epoch);
	CHECK(got.pg == sent.pg && got.annotations == 113 && got.version == sent.version && got.result == -2);
	CHECK(got.flags == sent.flags && strcmp(got.name, sent.name) == 0);
	CHECK(got.data_len == 5 && memcmp(got.data, "hello", 5) == 0);
	msg_clear(&got);
	close(fds[0]);
	CHECK(msg_receive(fds[1], &got) == -EPIPE);
	close(fds[1]);
}

static int receive_bytes(const unsigned char *bytes, size_t len)
{
	struct msg got = {0};
	int fds[2], rc;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	CHECK(write(fds[0], bytes, len) == (ssize_t)len);
	close(fds[0]);
	rc = msg_receive(fds[1], &got);
	if (rc == 0)
		msg_clear(&got);
	close(fds[1]);
	return rc;
}

static size_t bytes_of(const struct msg *msg, unsigned char *bytes, size_t max)
{
	int fds[2];
	ssize_t n;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	CHECK(msg_send(fds[0], msg) == 0);
	n = recv(fds[1], bytes, max, 0);
	CHECK(n > 0);
	close(fds[0]);
	close(fds[1]);
	return (size_t)n;
}

/* A message with one wrong bit, or cut short anywhere, is an error. */
static void damaged_message_is_refused(void)
{
	struct msg msg = sample("some data, long enough for a few words");
	unsigned char bytes[512];
	size_t len = bytes_of(&msg, bytes, sizeof bytes);

	CHECK(receive_bytes(bytes, len) == 0);
	for (size_t bit = 0; bit < len * 8; bit++) {
		bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
		CHECK(receive_bytes(bytes, len) != 0);
		bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
	}
	for (size_t cut = 0; cut < len; cut++)
		CHECK(receive_bytes(bytes, cut) != 0);
}

/* The lengths are checked before memory is allocated or data awaited: the error comes at once, though no data follow. */
static void absurd_lengths_are_refused_at_once(void)
{
	struct msg msg = sample("x");
	unsigned char bytes[512];
	int fds[2];
	struct msg got;

	bytes_of(&msg, bytes, sizeof bytes);
	put_u32(bytes + 40, MAX_DATA_BYTES + 1);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	CHECK(write(fds[0], bytes, MSG_HEADER_BYTES) == MSG_HEADER_BYTES);
	CHECK(msg_receive(fds[1], &got) == -EBADMSG);
	put_u32(bytes + 40, 1);
	put_u16(bytes + 38, MAX_NAME_BYTES + 1);
	CHECK(write(fds[0], bytes, MSG_HEADER_BYTES) == MSG_HEADER_BYTES);
	CHECK(msg_receive(fds[1], &got) == -EBADMSG);
	close(fds[0]);
	close(fds[1]);
}

static bool looks_for_a_silent_peer(int fd)
{
	int on = 0;
	socklen_t len = sizeof on;

	CHECK(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &len) == 0);
	return on;
}

static void both_ends_enable_keepalive(void)
{
	char address[ADDRESS_BYTES];
	int port = 0, listener = net_listen("127.0.0.1", &port), near, far;

	CHECK(listener >= 0);
	snprintf(address, sizeof address, "127.0.0.1:%d", port);
	near = net_connect(address);
	far = net_accept(listener);
	CHECK(near >= 0 && looks_for_a_silent_peer(near) && looks_for_a_silent_peer(far));
	close(near);
	close(far);
	close(listener);
}

static void object_names_are_valid_file_names(void)
{
	char long_name[MAX_NAME_BYTES + 2];

	memset(long_name, 'a', sizeof long_name);
	CHECK(msg_name_is_valid("marios_0000.1-2", 15));
	CHECK(msg_name_is_valid(long_name, MAX_NAME_BYTES));
	CHECK(!msg_name_is_valid(long_name, MAX_NAME_BYTES + 1));
	CHECK(!msg_name_is_valid("", 0));
	CHECK(!msg_name_is_valid("a/b", 3));
	CHECK(!msg_name_is_valid("a\0b", 3));
	CHECK(!msg_name_is_valid("\xc3\xa9", 2));
}

static struct osdmap two_osds_up(void)
{
	struct osdmap map;

	osdmap_create(&map, 2, 8);
	CHECK(osdmap_osd_up(&map, 0, 100, 1, "a:1"));
	CHECK(osdmap_osd_up(&map, 1, 101, 1, "b:1"));
	return map;
}

static void recover_all(struct osdmap *map, unsigned osd)
{
	for (unsigned pg = 0; pg < map->pg_count; pg++)
		osdmap_recovered(map, osd, pg, map->pg[pg].state_since);
}

static void primary_moves_to_the_replica_and_back(void)
{
	struct osdmap map = two_osds_up();

	recover_all(&map, 0);
	recover_all(&map, 1);
	for (unsigned pg = 0; pg < 8; pg++)
		osdmap_return_home(&map, pg);
	CHECK(osdmap_is_clean(&map));
	CHECK(map.pg[0].primary == 0);
	CHECK(osdmap_osd_down(&map, 0));
	CHECK(map.pg[0].primary == 1 && map.pg[0].state == REPLICA_ABSENT && map.pg[0].primary_since == map.epoch);
	CHECK(osdmap_osd_up(&map, 0, 100, 2, "a:2"));
	CHECK(map.pg[0].primary == 1 && map.pg[0].state == REPLICA_RECOVERING);
	CHECK(!osdmap_return_home(&map, 0)); /* not before the replica is complete */
	CHECK(!osdmap_recovered(&map, 0, 0, map.pg[0].state_since - 1)); /* the report of an earlier refill */
	recover_all(&map, 0);
	CHECK(osdmap_return_home(&map, 0) && map.pg[0].primary == 0);
}

/* osd.1 took writes alone: osd.0 must not serve without it, however often all processes restart. */
static void outdated_copy_never_becomes_primary(void)
{
	struct osdmap map = two_osds_up();

	recover_all(&map, 0);
	recover_all(&map, 1);
	osdmap_osd_down(&map, 0);
	osdmap_osd_down(&map, 1);
	osdmap_osd_up(&map, 0, 100, 2, "a:2");
	for (unsigned pg = 0; pg < 8; pg++)
		CHECK(map.pg[pg].primary == 1 && map.pg[pg].state == REPLICA_ABSENT);
}

static void empty_directory_never_becomes_primary(void)
{
	struct osdmap map = two_osds_up();

	recover_all(&map, 0);
	recover_all(&map, 1);
	osdmap_osd_down(&map, 1);
	CHECK(!osdmap_would_lose(&map, 0, 100));
	CHECK(osdmap_would_lose(&map, 0, 999)); /* only osd.0 is complete now */
	CHECK(!osdmap_would_lose(&map, 1, 999));
	osdmap_osd_down(&map, 0);
	osdmap_osd_up(&map, 1, 999, 2, "b:2");
	for (unsigned pg = 0; pg < 8; pg++)
		CHECK(map.pg[pg].primary == 0 && map.pg[pg].state == REPLICA_ABSENT);
}

static void map_round_trips_and_damaged_maps_are_refused(void)
{
	struct osdmap map = two_osds_up(), back = {0};
	unsigned char bytes[OSDMAP_MAX_BYTES];
	size_t len = osdmap_encode(&map, bytes);

	CHECK(osdmap_decode(&back, bytes, len) == 0);
	CHECK(memcmp(&map, &back, sizeof map) == 0);
	for (size_t cut = 0; cut < len; cut++)
		CHECK(osdmap_decode(&back, bytes, cut) == -EBADMSG);
	for (size_t at = 0; at < len; at++) {
		bytes[at] ^= 0x40;
		CHECK(osdmap_decode(&back, bytes, len) == -EBADMSG);
		bytes[at] ^= 0x40;
	}
}

static void store_keeps_the_newest_version(const char *dir)
{
	static struct store store;
	struct object_version v1 = {1, 3, crc32c(0, "one", 3)}, v2 = {2, 3, crc32c(0, "two", 3)}, is;
	unsigned char *data;

	CHECK(store_open(&store, dir) == 0);
	CHECK(store_put(&store, 3, "x", &v2, (const unsigned char *)"two", 0) == 0);
	CHECK(store_put(&store, 3, "x", &v1, (const unsigned char *)"one", 0) == 0);
	CHECK(store_read(&store, 3, "x", &data, &is) == 0 && is.version == 2 && memcmp(data, "two", 3) == 0);
	free(data);
	CHECK(store_put(&store, 3, "x", &v1, (const unsigned char *)"one", 1) == 0); /* epoch 0 is before 1: suspect */
	CHECK(store_read(&store, 3, "x", &data, &is) == 0 && is.version == 1 && memcmp(data, "one", 3) == 0);
	free(data);
	CHECK(store_read(&store, 3, "y", &data, &is) == -ENOENT);
	store_close(&store);
	CHECK(store_open(&store, dir) == 0);
	CHECK(store_find(&store, 3, "x", &is) && is.version == 1 && store_last_version(&store, 3) == 1);
	CHECK(store_delete(&store, 3, "x", 5, 0) == 0 && !store_find(&store, 3, "x", &is));
	store_close(&store);
}

static bool names_have_memory = true;

/* Replaces the C library's strdup(), with which a listing copies its names, so that a copy can fail. */
char *strdup(const char *text)
{
	size_t bytes = strlen(text) + 1;
	char *copy = names_have_memory ? malloc(bytes) : NULL;

	return copy ? memcpy(copy, text, bytes) : NULL;
}

static void listing_without_memory_is_empty(const char *dir)
{
	static struct store store;
	struct object_version is = {1, 3, crc32c(0, "one", 3)};
	struct listed *list;
	size_t count;

	CHECK(store_open(&store, dir) == 0);
	CHECK(store_put(&store, 3, "listed", &is, (const unsigned char *)"one", 0) == 0);
	names_have_memory = false;
	CHECK(store_list(&store, 3, "", &list, &count) == -ENOMEM && list == NULL && count == 0);
	names_have_memory = true;
	store_close(&store);
}

static void damaged_object_is_an_error(const char *dir)
{
	static struct store store;
	struct object_version v = {9, 5, crc32c(0, "hello", 5)}, is;
	unsigned char *data;
	char path[600];
	int fd;

	CHECK(store_open(&store, dir) == 0);
	CHECK(store_put(&store, 4, "z", &v, (const unsigned char *)"hello", 0) == 0);
	snprintf(path, sizeof path, "%s/store/pg-004/o_z", dir);
	fd = open(path, O_WRONLY);
	CHECK(fd >= 0 && pwrite(fd, "J", 1, 24) == 1);
	close(fd);
	CHECK(store_read(&store, 4, "z", &data, &is) == -EIO);
	store_close(&store);
}

static void damaged_header_is_repaired_by_replay(const char *dir)
{
	static struct store store;
	struct object_version v = {9, 5, crc32c(0, "hello", 5)}, is;
	char path[600];
	int fd;

	snprintf(path, sizeof path, "%s/store/pg-004/o_z", dir);
	fd = open(path, O_WRONLY);
	CHECK(fd >= 0 && pwrite(fd, "J", 1, 0) == 1);
	close(fd);
	CHECK(store_open(&store, dir) == 0);
	CHECK(store_find(&store, 4, "z", &is) && store_damaged(&store, 4, path, sizeof path));
	CHECK(strcmp(path + strlen(dir), "/store/pg-004/o_z") == 0);
	CHECK(store_put(&store, 4, "z", &v, (const unsigned char *)"hello", 0) == 0); /* as a replay does */
	CHECK(!store_damaged(&store, 4, path, sizeof path));
	store_close(&store);
}

static void tombstone_rejects_an_older_pulled_version(const char *dir)
{
	static struct store store;
	struct object_version old = {1, 3, crc32c(0, "old", 3)}, is;

	CHECK(store_open(&store, dir) == 0);
	store_keep_tombstones(&store, 5, true);
	CHECK(store_delete(&store, 5, "d", (uint64_t)7 << 32, 0) == 0);
	CHECK(store_put(&store, 5, "d", &old, (const unsigned char *)"old", 7) == 0);
	CHECK(!store_find(&store, 5, "d", &is));
	store_keep_tombstones(&store, 5, false);
	CHECK(store.pg[5].objects == 0);
	store_close(&store);
}

struct replayed {
	uint64_t versions[64];
	unsigned count, synced;
};

static int note_entry(void *owner, const struct journal_entry *entry)
{
	struct replayed *seen = owner;

	CHECK(entry->data_len == 4 && memcmp(entry->data, "data", 4) == 0 && strcmp(entry->name, "obj") == 0);
	seen->versions[seen->count++] = entry->version;
	return 0;
}

static int note_sync(void *owner)
{
	((struct replayed *)owner)->synced++;
	return 0;
}

static void write_segment(const char *dir, uint64_t id, unsigned entries, size_t cut)
{
	char path[600];
	unsigned char header[ENTRY_HEADER_BYTES], zeros[8] = {0};
	int fd;

	snprintf(path, sizeof path, "%s/journal", dir);
	mkdir(path, 0755);
	snprintf(path, sizeof path, "%s/journal/segment-%016ju", dir, (uintmax_t)id);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(fd >= 0);
	for (unsigned n = 0; n < entries; n++) {
		struct journal_entry e = {.op = OP_PUT, .version = 100 + id + n, .name = "obj", .name_len = 3,
					  .data = (const unsigned char *)"data", .data_len = 4,
					  .data_crc = crc32c(0, "data", 4)};
		size_t padding = entry_bytes(&e) - ENTRY_HEADER_BYTES - 7;

		entry_encode(&e, id + n, header);
		CHECK(write(fd, header, sizeof header) == sizeof header && write(fd, "objdata", 7) == 7 &&
		      write(fd, zeros, padding) == (ssize_t)padding);
	}
	CHECK(ftruncate(fd, lseek(fd, 0, SEEK_END) - (off_t)cut) == 0);
	close(fd);
}

static int open_journal(const char *dir, struct replayed *seen)
{
	static struct journal journal;
	struct journal_hooks hooks = {.owner = seen, .replay = note_entry, .sync = note_sync};
	int rc;

	memset(seen, 0, sizeof *seen);
	rc = journal_open(&journal, dir, JOURNAL_MIN_SEGMENT_BYTES, 0, &hooks);
	if (rc == 0)
		journal_close(&journal);
	return rc;
}

static void journal_replays_up_to_the_torn_end(const char *dir)
{
	struct replayed seen;

	write_segment(dir, 1, 3, 0);
	write_segment(dir, 4, 3, 5); /* its last entry is torn */
	CHECK(open_journal(dir, &seen) == 0);
	CHECK(seen.count == 5 && seen.versions[0] == 101 && seen.versions[4] == 105 && seen.synced == 1);
	CHECK(open_journal(dir, &seen) == 0);
	CHECK(seen.count == 0); /* nothing is replayed twice */
}

static void journal_with_a_gap_is_refused(const char *dir)
{
	struct replayed seen;
	char command[700];

	snprintf(command, sizeof command, "rm -rf %s/journal", dir);
	CHECK(system(command) == 0);
	write_segment(dir, 1, 3, 5); /* torn, but not the end */
	write_segment(dir, 4, 3, 0);
	CHECK(open_journal(dir, &seen) == -EUCLEAN);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	crc_is_castagnoli();
	message_round_trips();
	damaged_message_is_refused();
	absurd_lengths_are_refused_at_once();
	both_ends_enable_keepalive();
	object_names_are_valid_file_names();
	primary_moves_to_the_replica_and_back();
	outdated_copy_never_becomes_primary();
	empty_directory_never_becomes_primary();
	map_round_trips_and_damaged_maps_are_refused();
	store_keeps_the_newest_version(argv[1]);
	listing_without_memory_is_empty(argv[1]);
	damaged_object_is_an_error(argv[1]);
	damaged_header_is_repaired_by_replay(argv[1]);
	tombstone_rejects_an_older_pulled_version(argv[1]);
	journal_replays_up_to_the_torn_end(argv[1]);
	journal_with_a_gap_is_refused(argv[1]);
	puts("units: ok");
	return 0;
}
