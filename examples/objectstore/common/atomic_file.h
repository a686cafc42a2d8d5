/* atomic_file.h - small files that after a crash hold either the old or the new version, never a mixture. */
#ifndef OBJSTORE_ATOMIC_FILE_H
#define OBJSTORE_ATOMIC_FILE_H

#include <stddef.h>
#include <sys/types.h>

/* Replaces path durably (file and directory are on the disk when it returns); 0 or -errno. */
int atomic_file_write(const char *path, const void *data, size_t len);
/* Reads at most max bytes; returns their number or -errno (-EFBIG when the file is larger). */
ssize_t atomic_file_read(const char *path, void *data, size_t max);
/* Syncs the directory that holds path, so that new and renamed files in it survive a crash; 0 or -errno. */
int sync_parent(const char *path);

#endif
