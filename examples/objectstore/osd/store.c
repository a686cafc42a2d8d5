/* store.c - object files: written under another name, then renamed, so that a reader sees the old or the new object. */
#include "store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bytes.h"
#include "crc32c.h"
#include "index.h"
#include "msg.h"

#define FILE_MAGIC 0x4f424a46u /* "OBJF" */
#define FILE_HEADER_BYTES 24
#define FILE_NAME_BYTES (MAX_NAME_BYTES + 3)

static void encode_header(unsigned char h[FILE_HEADER_BYTES], const char *name, const struct object_version *is)
{
	put_u32(h, FILE_MAGIC);
	put_u64(h + 8, is->version);
	put_u32(h + 16, is->size);
	put_u32(h + 20, is->crc);
	put_u32(h + 4, crc32c(crc32c(0, h + 8, FILE_HEADER_BYTES - 8), name, strlen(name)));
}

static int decode_header(const unsigned char h[FILE_HEADER_BYTES], const char *name, struct object_version *is)
{
	if (get_u32(h) != FILE_MAGIC ||
	    get_u32(h + 4) != crc32c(crc32c(0, h + 8, FILE_HEADER_BYTES - 8), name, strlen(name)))
		return -EIO;
	is->version = get_u64(h + 8);
	is->size = get_u32(h + 16);
	is->crc = get_u32(h + 20);
	return is->size <= MAX_OBJECT_BYTES ? 0 : -EIO;
}

static void file_name(char out[FILE_NAME_BYTES], char kind, const char *name)
{
	snprintf(out, FILE_NAME_BYTES, "%c_%s", kind, name);
}

static int open_pg_dir(struct store *store, unsigned pg)
{
	char name[16];

	if (store->pg[pg].dir >= 0)
		return 0;
	snprintf(name, sizeof name, "pg-%03u", pg);
	if (mkdirat(store->dir, name, 0755) != 0 && errno != EEXIST)
		return -errno;
	store->pg[pg].dir = openat(store->dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return store->pg[pg].dir < 0 ? -errno : 0;
}

static int read_header(int dir, const char *file, const char *name, struct object_version *is)
{
	unsigned char header[FILE_HEADER_BYTES];
	int fd = openat(dir, file, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = pread(fd, header, sizeof header, 0);
	close(fd);
	return n == (ssize_t)sizeof header ? decode_header(header, name, is) : -EIO;
}

/* Version of an object whose header is unreadable; no write has this version. */
#define DAMAGED_VERSION 0

/* A temporary file that a crash left is removed; if its write was acknowledged, the journal has it. */
static int load_file(struct store *store, unsigned pg, const char *file)
{
	struct object_version is;
	int rc;

	if (strncmp(file, "t_", 2) == 0) {
		unlinkat(store->pg[pg].dir, file, 0);
		return 0;
	}
	if (strncmp(file, "o_", 2) != 0 || !msg_name_is_valid(file + 2, strlen(file + 2)))
		return 0;
	rc = read_header(store->pg[pg].dir, file, file + 2, &is);
	if (rc != 0)
		is = (struct object_version){.version = DAMAGED_VERSION};
	return index_set(&store->pg[pg], file + 2, &is, false);
}

static int load_pg(struct store *store, unsigned pg)
{
	DIR *dir;
	struct dirent *file;
	char name[16];
	int rc = 0;

	snprintf(name, sizeof name, "pg-%03u", pg);
	if (faccessat(store->dir, name, F_OK, 0) != 0)
		return errno == ENOENT ? 0 : -errno;
	rc = open_pg_dir(store, pg);
	if (rc != 0)
		return rc;
	dir = fdopendir(openat(store->pg[pg].dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	if (!dir)
		return -errno;
	while (rc == 0 && (file = readdir(dir)) != NULL)
		rc = load_file(store, pg, file->d_name);
	closedir(dir);
	return rc;
}

int store_open(struct store *store, const char *dir)
{
	int rc = 0;

	memset(store, 0, sizeof *store);
	snprintf(store->path, sizeof store->path, "%s/store", dir);
	if (mkdir(store->path, 0755) != 0 && errno != EEXIST)
		return -errno;
	store->dir = open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (store->dir < 0)
		return -errno;
	for (unsigned pg = 0; pg < MAX_PGS; pg++) {
		pthread_mutex_init(&store->pg[pg].lock, NULL);
		store->pg[pg].dir = -1;
		if (rc == 0)
			rc = load_pg(store, pg);
	}
	return rc;
}

bool store_damaged(struct store *store, unsigned pg, char *path, size_t max)
{
	const struct object *found;

	pthread_mutex_lock(&store->pg[pg].lock);
	found = index_find_version(&store->pg[pg], DAMAGED_VERSION);
	if (found)
		snprintf(path, max, "%s/pg-%03u/o_%s", store->path, pg, found->name);
	pthread_mutex_unlock(&store->pg[pg].lock);
	return found != NULL;
}

void store_close(struct store *store)
{
	for (unsigned pg = 0; pg < MAX_PGS; pg++) {
		index_free(&store->pg[pg]);
		if (store->pg[pg].dir >= 0)
			close(store->pg[pg].dir);
		pthread_mutex_destroy(&store->pg[pg].lock);
	}
	close(store->dir);
}

bool store_find(struct store *store, unsigned pg, const char *name, struct object_version *found)
{
	struct object *object;
	bool there;

	pthread_mutex_lock(&store->pg[pg].lock);
	object = index_find(&store->pg[pg], name);
	there = object && !object->deleted;
	if (there)
		*found = (struct object_version){object->version, object->size, object->crc};
	pthread_mutex_unlock(&store->pg[pg].lock);
	return there;
}

static int read_verified(int fd, const char *name, unsigned char **data, struct object_version *is)
{
	unsigned char header[FILE_HEADER_BYTES];
	int rc;

	if (pread(fd, header, sizeof header, 0) != (ssize_t)sizeof header)
		return -EIO;
	rc = decode_header(header, name, is);
	if (rc != 0)
		return rc;
	*data = malloc(is->size + 1u);
	if (!*data)
		return -ENOMEM;
	if (pread(fd, *data, is->size, FILE_HEADER_BYTES) == (ssize_t)is->size && crc32c(0, *data, is->size) == is->crc)
		return 0;
	free(*data);
	*data = NULL;
	return -EIO;
}

int store_read(struct store *store, unsigned pg, const char *name, unsigned char **data, struct object_version *is)
{
	char file[FILE_NAME_BYTES];
	int fd, rc;

	*data = NULL;
	if (!store_find(store, pg, name, is))
		return -ENOENT;
	file_name(file, 'o', name);
	fd = openat(store->pg[pg].dir, file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT && store_find(store, pg, name, is) ? -EIO : -errno;
	rc = read_verified(fd, name, data, is);
	close(fd);
	return rc;
}

static bool has_as_new(const struct object *have, uint64_t version, uint32_t suspect_before)
{
	return have && version_epoch(have->version) >= suspect_before && have->version >= version;
}

static int write_file(int dir, const char *name, const struct object_version *is, const unsigned char *data)
{
	unsigned char header[FILE_HEADER_BYTES];
	char beside[FILE_NAME_BYTES], file[FILE_NAME_BYTES];
	struct iovec iov[2] = {{header, sizeof header}, {(unsigned char *)(uintptr_t)data, is->size}};
	int fd, rc = 0;

	file_name(beside, 't', name);
	file_name(file, 'o', name);
	encode_header(header, name, is);
	fd = openat(dir, beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	errno = ENOSPC; /* a short write means that the disk is full */
	if (writev(fd, iov, 2) != (ssize_t)(sizeof header + is->size))
		rc = -errno;
	close(fd);
	if (rc == 0 && renameat(dir, beside, dir, file) != 0)
		rc = -errno;
	if (rc != 0)
		unlinkat(dir, beside, 0);
	return rc;
}

int store_put(struct store *store, unsigned pg, const char *name, const struct object_version *is,
	      const unsigned char *data, uint32_t suspect_before)
{
	struct store_pg *place = &store->pg[pg];
	int rc = 0;

	pthread_mutex_lock(&place->lock);
	if (!has_as_new(index_find(place, name), is->version, suspect_before)) {
		rc = open_pg_dir(store, pg);
		if (rc == 0)
			rc = write_file(place->dir, name, is, data);
		if (rc == 0)
			rc = index_set(place, name, is, false);
	}
	pthread_mutex_unlock(&place->lock);
	return rc;
}

static int remove_file(struct store_pg *place, const char *name, uint64_t version)
{
	struct object_version gone = {.version = version};
	char file[FILE_NAME_BYTES];

	file_name(file, 'o', name);
	if (place->dir >= 0 && unlinkat(place->dir, file, 0) != 0 && errno != ENOENT)
		return -errno;
	if (place->keep_tombstones)
		return index_set(place, name, &gone, true);
	index_remove(place, name);
	return 0;
}

int store_delete(struct store *store, unsigned pg, const char *name, uint64_t version, uint32_t suspect_before)
{
	struct store_pg *place = &store->pg[pg];
	int rc = 0;

	pthread_mutex_lock(&place->lock);
	if (!has_as_new(index_find(place, name), version, suspect_before))
		rc = remove_file(place, name, version);
	pthread_mutex_unlock(&place->lock);
	return rc;
}

void store_keep_tombstones(struct store *store, unsigned pg, bool keep)
{
	pthread_mutex_lock(&store->pg[pg].lock);
	store->pg[pg].keep_tombstones = keep;
	if (!keep)
		index_drop_tombstones(&store->pg[pg]);
	pthread_mutex_unlock(&store->pg[pg].lock);
}

int store_list(struct store *store, unsigned pg, const char *after, struct listed **list, size_t *count)
{
	int rc;

	pthread_mutex_lock(&store->pg[pg].lock);
	rc = index_list(&store->pg[pg], after, list, count);
	pthread_mutex_unlock(&store->pg[pg].lock);
	return rc;
}

void store_list_free(struct listed *list, size_t count)
{
	for (size_t n = 0; n < count; n++)
		free(list[n].name);
	free(list);
}

uint64_t store_last_version(struct store *store, unsigned pg)
{
	uint64_t last;

	pthread_mutex_lock(&store->pg[pg].lock);
	last = index_last_version(&store->pg[pg]);
	pthread_mutex_unlock(&store->pg[pg].lock);
	return last;
}

int store_sync(struct store *store)
{
	/* One call for thousands of small files; since Linux 5.8 it reports write-back errors too. */
	return syncfs(store->dir) == 0 ? 0 : -errno;
}
