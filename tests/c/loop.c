/*
 * Begins a request every half millisecond, on one CPU, and records its number and events at several levels. Prints "ready",
 * begins at the first line on stdin, and ends at the end of stdin.
 */
#define _GNU_SOURCE
#include <blkin/zipkin_c.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static struct blkin_endpoint endpoint;

static void one_request(long number)
{
	struct blkin_span span;

	if (blkin_span_root(&span, "request", &endpoint) || span.trace.info.trace_id == 0)
		return;
	BLKIN_INTEGER_AT(BLKIN_LEVEL_EMERG, &span, "number", number);
	BLKIN_EVENT_AT(BLKIN_LEVEL_EMERG, &span, "emerg");
	BLKIN_EVENT_AT(BLKIN_LEVEL_ERR, &span, "err");
	BLKIN_TIMESTAMP(&span.trace, &endpoint, "legacy");
	BLKIN_EVENT_AT(BLKIN_LEVEL_INFO, &span, "info");
	BLKIN_EVENT_AT(BLKIN_LEVEL_DEBUG, &span, "debug");
}

static int has_ended(void)
{
	struct pollfd input = { STDIN_FILENO, POLLIN, 0 };
	char byte;

	return poll(&input, 1, 0) == 1 && read(STDIN_FILENO, &byte, 1) == 0;
}

int main(void)
{
	const struct timespec pause = { 0, 500000 };
	cpu_set_t one;
	char line[16];

	/* One CPU means one ring and one count of requests, so that a rate of N traces exactly every Nth. */
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	if (sched_setaffinity(0, sizeof(one), &one) || blkin_init())
		return 1;
	blkin_init_endpoint(&endpoint, "127.0.0.1", 6800, "loop");
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 0;
	for (long number = 0; !has_ended(); number++) {
		one_request(number);
		nanosleep(&pause, NULL);
	}
	return 0;
}
