/* atomic_file.h - small files that are either the old or the new version, whatever happens. */
#ifndef OBJSTORE_ATOMIC_FILE_H
#define OBJSTORE_ATOMIC_FILE_H

#include <stddef.h>
#include <sys/types.h>

/* Replaces path durably (file and directory are on the disk when it returns); 0 or -errno. */
int atomic_file_write(const char *path, const void *data, size_t len);
/* Reads at most max bytes; how many, or -errno (-EFBIG when the file is larger). */
ssize_t atomic_file_read(const char *path, void *data, size_t max);
/* Makes the names in the directory of path durable; 0 or -errno. */
int sync_parent(const char *path);

#endif
