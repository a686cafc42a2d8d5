/* atomic_file.c - write a second file beside the first, fsync it, rename it over the first, fsync the directory. */
#include "atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int write_and_sync(int fd, const char *data, size_t len)
{
	while (len > 0) {
		ssize_t n = write(fd, data, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		data += n;
		len -= (size_t)n;
	}
	return fsync(fd) == 0 ? 0 : -errno;
}

int sync_parent(const char *path)
{
	char dir[PATH_MAX];
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) : 0;
	int fd, rc;

	if (len >= sizeof dir)
		return -ENAMETOOLONG;
	memcpy(dir, path, len);
	dir[len] = '\0';
	fd = open(slash ? (len ? dir : "/") : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = fsync(fd) == 0 ? 0 : -errno;
	close(fd);
	return rc;
}

int atomic_file_write(const char *path, const void *data, size_t len)
{
	char beside[PATH_MAX];
	int fd, rc;

	if (snprintf(beside, sizeof beside, "%s.new", path) >= (int)sizeof beside)
		return -ENAMETOOLONG;
	fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	rc = write_and_sync(fd, data, len);
	close(fd);
	if (rc == 0 && rename(beside, path) != 0)
		rc = -errno;
	if (rc != 0) {
		unlink(beside);
		return rc;
	}
	return sync_parent(path);
}

ssize_t atomic_file_read(const char *path, void *data, size_t max)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t done = 0;
	ssize_t n = 0;
	char more;

	if (fd < 0)
		return -errno;
	while (done < max) {
		n = read(fd, (char *)data + done, max - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		done += (size_t)n;
	}
	if (n < 0)
		n = -errno;
	else if (done == max && read(fd, &more, 1) == 1)
		n = -EFBIG;
	close(fd);
	return n < 0 ? n : (ssize_t)done;
}
