/*
 * Shared by the test programs: CHECK, and the lines that they expect the consumer to read. Each line is written by
 * one write() to the file $EXPECT, which is opened anew each time, so that forks and closed descriptors do not matter.
 */
#ifndef EXPECT_H
#define EXPECT_H

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zipkin_c.h"

#define CHECK(condition)                                                                      \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			_exit(1);                                                             \
		}                                                                             \
	} while (0)

static inline void expect_write(const char *suffix, const char *line)
{
	char path[512];
	const char *base = getenv("EXPECT");
	int fd;

	CHECK(base != NULL);
	CHECK(snprintf(path, sizeof path, "%s%s", base, suffix) < (int)sizeof path);
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	CHECK(fd >= 0);
	CHECK(write(fd, line, strlen(line)) == (ssize_t)strlen(line));
	close(fd);
}

/* value: "!" for an event, "#7" for an integer, "=text" for a string. */
static inline void expect(const struct blkin_trace_info *info, const char *name, const char *ip, int port,
			  const char *service, const char *key, const char *value)
{
	char line[8192];

	CHECK(snprintf(line, sizeof line, "%016" PRIx64 " %016" PRIx64 " %016" PRIx64 "|%s|%s|%d|%s|%s|%s\n",
		       (uint64_t)info->trace_id, (uint64_t)info->span_id, (uint64_t)info->parent_span_id, name, ip,
		       port, service, key, value) < (int)sizeof line);
	expect_write("", line);
}

/* For programs that record too much to list it: the number of calls, one line for each process. */
static inline void expect_count(long calls)
{
	char line[32];

	snprintf(line, sizeof line, "%ld\n", calls);
	expect_write(".count", line);
}

static inline int is_zero(const void *memory, size_t bytes)
{
	const unsigned char *byte = (const unsigned char *)memory;

	while (bytes--)
		if (*byte++)
			return 0;
	return 1;
}

#endif /* EXPECT_H */
