/* journal_replay.c - a torn entry at the very end was never acknowledged, so replay ends there. Missing entries before the
 * newest segment are damage; a damaged entry within the newest segment cannot be told from a torn end. */
#include "journal_replay.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "atomic_file.h"
#include "journal_format.h"
#include "log.h"
#include "msg.h"

#define MAX_FOUND 64 /* an undamaged directory has at most JOURNAL_MAX_SEGMENTS */

void segment_path(const struct journal *journal, uint64_t id, char *out, size_t max)
{
	snprintf(out, max, "%s/segment-%016" PRIu64, journal->dir, id);
}

static int by_id(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static int find_segments(const struct journal *journal, uint64_t ids[MAX_FOUND])
{
	DIR *dir = opendir(journal->dir);
	struct dirent *file;
	int count = 0;

	if (!dir)
		return -errno;
	while ((file = readdir(dir)) != NULL) {
		if (strncmp(file->d_name, "segment-", 8) != 0)
			continue;
		if (count == MAX_FOUND) {
			closedir(dir);
			return -EUCLEAN;
		}
		ids[count++] = strtoull(file->d_name + 8, NULL, 10);
	}
	closedir(dir);
	qsort(ids, (size_t)count, sizeof *ids, by_id);
	return count;
}

static int replay_entries(struct journal *journal, const unsigned char *bytes, size_t len)
{
	char name[MAX_NAME_BYTES + 1];
	struct journal_entry entry;
	uint64_t seq;
	size_t at = 0, taken;

	while ((taken = entry_decode(bytes + at, len - at, &entry, &seq, name)) != 0 && seq == journal->next_seq) {
		int rc = journal->hooks.replay(journal->hooks.owner, &entry);
		if (rc != 0)
			return rc;
		journal->next_seq++;
		journal->replayed++;
		at += taken;
	}
	return 0;
}

static int replay_segment(struct journal *journal, uint64_t id)
{
	char path[600];
	struct stat st;
	unsigned char *bytes;
	int fd, rc = 0;

	segment_path(journal, id, path, sizeof path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) != 0)
		rc = -errno;
	if (rc == 0 && st.st_size > 0) {
		bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		rc = bytes == MAP_FAILED ? -errno : replay_entries(journal, bytes, (size_t)st.st_size);
		if (bytes != MAP_FAILED)
			munmap(bytes, (size_t)st.st_size);
	}
	close(fd);
	return rc;
}

static int remove_segments(struct journal *journal, const uint64_t *ids, int count)
{
	char path[600];

	for (int n = 0; n < count; n++) {
		segment_path(journal, ids[n], path, sizeof path);
		if (unlink(path) != 0)
			return -errno;
	}
	return sync_parent(path);
}

int journal_replay(struct journal *journal)
{
	uint64_t ids[MAX_FOUND];
	int count = find_segments(journal, ids), rc = 0;

	if (count <= 0)
		return count;
	journal->next_seq = ids[0];
	for (int n = 0; n < count && rc == 0; n++) {
		if (journal->next_seq != ids[n]) {
			log_line("failed to replay the journal: entries %" PRIu64 " to %" PRIu64
				 " are missing or damaged. Remove this OSD's directory to have it refilled from its "
				 "peers",
				 journal->next_seq, ids[n] - 1);
			return -EUCLEAN;
		}
		rc = replay_segment(journal, ids[n]);
	}
	if (rc == 0)
		rc = journal->hooks.sync(journal->hooks.owner);
	return rc == 0 ? remove_segments(journal, ids, count) : rc;
}
