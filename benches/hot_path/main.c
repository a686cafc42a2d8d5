/*
 * What one call costs while it is hot: hot_path CASE
 *
 * Bursts of 5,000 calls with pauses in which whoever reads can catch up; the time stamp counter, fenced, around each
 * burst. Prints the median burst in nanoseconds a call. scripts/bench pins, repeats and compares.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <x86intrin.h>

#include <zipkin_c.h>
#include "lttng_peer.h"

enum { BURSTS = 300, CALLS = 5000, PAUSE_NS = 4000000 };

static struct blkin_endpoint endpoint;
static struct blkin_trace trace, unsampled;
static volatile uint64_t sink;

static void rdtsc(int n) { (void)n; sink = __rdtsc(); }

static void clock_read(int n)
{
	struct timespec now;
	(void)n;
	clock_gettime(CLOCK_MONOTONIC, &now);
	sink = (uint64_t)now.tv_nsec;
}

static void event(int n) { (void)n; BLKIN_TIMESTAMP(&trace, &endpoint, "Enqueued op"); }
static void integer(int n) { BLKIN_KEYVAL_INTEGER(&trace, &endpoint, "bytes", n); }
static void string(int n) { (void)n; BLKIN_KEYVAL_STRING(&trace, &endpoint, "Object", "rbd_data.1"); }
static void not_sampled(int n) { (void)n; BLKIN_TIMESTAMP(&unsampled, &endpoint, "Enqueued op"); }

static void lttng(int n)
{
	(void)n;
	lttng_ust_tracepoint(blkin_peer, annotation, trace.info.trace_id, trace.info.span_id,
			     trace.info.parent_span_id, "Main", "Enqueued op");
}

static const struct { const char *name; void (*call)(int); int calls; } cases[] = {
	{ "rdtsc", rdtsc, CALLS },
	{ "clock_gettime", clock_read, CALLS },
	{ "blkin-event", event, CALLS },
	{ "blkin-integer", integer, CALLS },
	{ "blkin-string", string, CALLS },
	{ "blkin-unsampled", not_sampled, CALLS },
	{ "lttng", lttng, CALLS },
};

static uint64_t fenced(void)
{
	_mm_lfence();
	uint64_t now = __rdtsc();
	_mm_lfence();
	return now;
}

static double nanoseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	const struct timespec pause = { 0, PAUSE_NS };
	double bursts[BURSTS];
	size_t chosen, count = sizeof cases / sizeof *cases;

	for (chosen = 0; argc == 2 && chosen < count && strcmp(cases[chosen].name, argv[1]); chosen++)
		;
	if (argc != 2 || chosen == count) {
		fprintf(stderr, "usage: hot_path CASE, one of:");
		for (chosen = 0; chosen < count; chosen++)
			fprintf(stderr, " %s", cases[chosen].name);
		fprintf(stderr, "\n");
		return 2;
	}
	blkin_init();
	blkin_init_endpoint(&endpoint, "10.0.0.1", 6800, "osd.0");
	blkin_init_new_trace(&trace, "Main", &endpoint);
	unsampled = trace;
	memset(&unsampled.info, 0, sizeof unsampled.info);

	double start_ns = nanoseconds();
	uint64_t start = fenced();
	for (int burst = 0; burst < BURSTS; burst++) {
		uint64_t before = fenced();
		for (int n = 0; n < cases[chosen].calls; n++)
			cases[chosen].call(n);
		bursts[burst] = (double)(fenced() - before) / cases[chosen].calls;
		nanosleep(&pause, NULL);
	}
	double ns_per_tick = (nanoseconds() - start_ns) / (double)(fenced() - start);
	qsort(bursts, BURSTS, sizeof *bursts, by_value);
	printf("%.2f\n", bursts[BURSTS / 2] * ns_per_tick);
	return 0;
}
