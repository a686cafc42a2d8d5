/* client.h - objstore-client: single operations, and a load that checks what it reads. */
#ifndef OBJSTORE_CLIENT_H
#define OBJSTORE_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "msg.h"

struct client_options {
	const char *gateway; /* "host:port" or "@FILE" */
	unsigned annotations;
	bool trace;
	bool json;
	/* status */
	uint16_t wait; /* FLAG_WAIT_... or 0 */
	unsigned timeout_ms;
	/* load */
	unsigned threads;
	uint32_t size;
	uint64_t count;   /* 0: as many as fit in the time */
	double seconds;   /* 0: as long as the count takes */
	unsigned objects; /* per thread */
	double rate;      /* operations a second of all threads; 0: no limit */
	unsigned put_share, get_share, delete_share;
	const char *prefix;
	uint64_t seed;
	const char *acked_log;
	bool keep_going;
};

/* connection.c: one operation, as the root of a trace. */
struct connection {
	int fd;
	const struct client_options *options;
	uint64_t next_tid;
	bool broken; /* no answer came: the connection cannot be used any more */
};

/* 0 or -errno. */
int connection_open(struct connection *connection, const struct client_options *options);
void connection_close(struct connection *connection);
/* 0 or -errno (-ENOENT: no such object). *reply owns its data; clear it when 0 is returned. */
int connection_run(struct connection *connection, enum op_code op, const char *name, const void *data, uint32_t len,
		   struct msg *reply);
int connection_status(struct connection *connection, struct msg *reply);

/* content.c: the content of an object's generation; generations count from 1, and 0 means absent. */
void content_fill(unsigned char *data, uint32_t size, const char *name, uint64_t generation);
bool content_is(const unsigned char *data, uint32_t size, const char *name, uint64_t generation);

/* histogram.c: latencies in microseconds, within 2 percent. */
#define HISTOGRAM_BUCKETS 2048
struct histogram {
	uint64_t count[HISTOGRAM_BUCKETS];
	uint64_t total, sum_us, max_us;
};
void histogram_add(struct histogram *histogram, uint64_t us);
void histogram_merge(struct histogram *into, const struct histogram *from);
uint64_t histogram_percentile(const struct histogram *histogram, double percent);

/* load.c, report.c, verify.c: 0, or 1 after a failed operation or wrong content. */
struct load_result {
	struct histogram put, get, delete;
	uint64_t errors, wrong;
	double seconds;
};
/* SIGINT and SIGTERM end the load early; the report is still printed. */
int load_run(const struct client_options *options);
void report_load(const struct client_options *options, const struct load_result *result);
int verify_run(const struct client_options *options);

#endif
