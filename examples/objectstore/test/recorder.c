/*
 * recorder.c - preloaded in place of the BlkKin library: writes every annotation as a line of JSON to
 * $BLKIN_RECORDER_FILE, so that cluster.py can check traces without a daemon.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <blkin/zipkin_c.h>

static int64_t new_id(void)
{
	int64_t id = 0;

	while (id == 0) {
		if (getrandom(&id, sizeof id, 0) != sizeof id)
			abort();
		id &= INT64_MAX;
	}
	return id;
}

int blkin_init_new_trace(struct blkin_trace *trace, const char *name, const struct blkin_endpoint *endpoint)
{
	int64_t id = new_id();

	trace->name = name;
	trace->endpoint = endpoint;
	trace->info = (struct blkin_trace_info){id, id, 0};
	return 0;
}

int blkin_init_child_info(struct blkin_trace *child, const struct blkin_trace_info *info,
			  const struct blkin_endpoint *endpoint, const char *name)
{
	if (!endpoint)
		return -EINVAL;
	child->info = (struct blkin_trace_info){info->trace_id, info->trace_id ? new_id() : 0, info->span_id};
	child->name = name;
	child->endpoint = endpoint;
	return 0;
}

int blkin_init_child(struct blkin_trace *child, const struct blkin_trace *parent,
		     const struct blkin_endpoint *endpoint, const char *name)
{
	return blkin_init_child_info(child, &parent->info, endpoint ? endpoint : parent->endpoint, name);
}

static void write_line(const char *line, size_t len)
{
	const char *path = getenv("BLKIN_RECORDER_FILE");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;

	if (fd < 0 || write(fd, line, len) != (ssize_t)len)
		abort();
	close(fd);
}

int blkin_trace_annotation(const struct blkin_trace *trace, const struct blkin_annotation *annotation)
{
	const struct blkin_endpoint *endpoint = annotation->endpoint ? annotation->endpoint : trace->endpoint;
	struct timespec now;
	char line[2048], value[512];
	int len;

	clock_gettime(CLOCK_REALTIME, &now);
	if (annotation->type == ANNOT_INTEGER)
		snprintf(value, sizeof value, "%" PRId64, annotation->val_int);
	else
		snprintf(value, sizeof value, "\"%s\"", annotation->val_str);
	len = snprintf(line, sizeof line,
		       "{\"trace\": %" PRId64 ", \"span\": %" PRId64 ", \"parent\": %" PRId64
		       ", \"name\": \"%s\", \"service\": \"%s\", \"port\": %d, \"key\": \"%s\", \"value\": %s, "
		       "\"ns\": %jd, \"pid\": %d}\n",
		       trace->info.trace_id, trace->info.span_id, trace->info.parent_span_id, trace->name, endpoint->name,
		       (unsigned short)endpoint->port, annotation->type == ANNOT_TIMESTAMP ? "" : annotation->key, value,
		       (intmax_t)now.tv_sec * 1000000000 + now.tv_nsec, (int)getpid());
	write_line(line, (size_t)len);
	return 0;
}

void blkin_trace_event(const struct blkin_trace *trace, const struct blkin_endpoint *endpoint, const char *event)
{
	blkin_trace_annotation(trace, &(struct blkin_annotation){.type = ANNOT_TIMESTAMP, .val_str = event, .endpoint = endpoint});
}

void blkin_trace_integer(const struct blkin_trace *trace, const struct blkin_endpoint *endpoint, const char *key,
			 int64_t val)
{
	blkin_trace_annotation(trace, &(struct blkin_annotation){
				    .type = ANNOT_INTEGER, .key = key, .val_int = val, .endpoint = endpoint});
}
