/*
 * Two processes over a pipe, four annotations an iteration: pipe MODE [REPETITIONS [ITERATIONS]]
 *
 * Both run on one CPU. The client opens a trace and annotates "start" and "end"; the server joins it as a child and
 * does the same. Blocks of iterations without any tracing and blocks with MODE take turns within one pair of processes,
 * so drift and an accidental memory layout affect both alike. MODE: none, legacy, new, syslog, and lttng if built with
 * PIPE_LTTNG.
 *
 * Prints for each repetition "pipe-base<TAB>s<TAB>T" and "pipe-MODE<TAB>s<TAB>T".
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <zipkin_c.h>
#include "bench.h"
#ifdef PIPE_LTTNG
#include "lttng_peer.h"
#endif

enum mode { BASE, NONE, LEGACY, NEW, SYSLOG, LTTNG };
static const char *const modes[] = { "base", "none", "legacy", "new", "syslog", "lttng" };

struct message {
	struct blkin_trace_info info;
	int mode; /* mode of the block that this message belongs to; -1: the end */
};

static struct blkin_endpoint endpoint;

static void say(const struct blkin_trace *trace, const char *event)
{
	syslog(LOG_WARNING, "%llx %llx %llx %s %s", (long long)trace->info.trace_id, (long long)trace->info.span_id,
	       (long long)trace->info.parent_span_id, trace->name, event);
}

/* Each side of an iteration, with the exchange between its two annotations. */
#define ITERATION(mode, begin_span, begin_new, exchange)                                                     \
	do {                                                                                                 \
		struct blkin_trace trace;                                                                    \
		switch (mode) {                                                                              \
		case BASE: case NONE:                                                                        \
			memset(&trace, 0, sizeof trace);                                                     \
			exchange;                                                                            \
			break;                                                                               \
		case LEGACY:                                                                                 \
			begin_span;                                                                          \
			BLKIN_TIMESTAMP(&trace, &endpoint, "start");                                         \
			exchange;                                                                            \
			BLKIN_TIMESTAMP(&trace, &endpoint, "end");                                           \
			break;                                                                               \
		case NEW: PIPE_NEW(begin_new, exchange); break;                                              \
		case SYSLOG:                                                                                 \
			begin_span;                                                                          \
			say(&trace, "start");                                                                \
			exchange;                                                                            \
			say(&trace, "end");                                                                  \
			break;                                                                               \
		case LTTNG: PIPE_TRACEPOINTS(begin_span, exchange); break;                                   \
		}                                                                                            \
	} while (0)

#define PIPE_NEW(begin_new, exchange)                      \
	do {                                               \
		struct blkin_span span;                    \
		begin_new;                                 \
		BLKIN_EVENT(&span, "start");               \
		exchange;                                  \
		BLKIN_EVENT(&span, "end");                 \
	} while (0)

#ifdef PIPE_LTTNG
#define TRACEPOINT(event) \
	lttng_ust_tracepoint(blkin_peer, annotation, trace.info.trace_id, trace.info.span_id, \
			     trace.info.parent_span_id, trace.name, event)
#define PIPE_TRACEPOINTS(begin_span, exchange)             \
	do {                                               \
		begin_span;                                \
		TRACEPOINT("start");                       \
		exchange;                                  \
		TRACEPOINT("end");                         \
	} while (0)
#else
#define PIPE_TRACEPOINTS(begin_span, exchange) exit(2)
#endif

static void put(int end, const struct message *message)
{
	if (write(end, message, sizeof *message) != sizeof *message)
		exit(1);
}

static void get(int end, struct message *message)
{
	if (read(end, message, sizeof *message) != sizeof *message)
		exit(1);
}

static void serve(int in, int out)
{
	struct message request;

	blkin_init_endpoint(&endpoint, "10.0.0.2", 6801, "server");
	for (get(in, &request); request.mode >= 0; get(in, &request))
		ITERATION(request.mode, blkin_init_child_info(&trace, &request.info, &endpoint, "serve"),
			  blkin_span_child(&span, &request.info, "serve", &endpoint), put(out, &request));
}

static double block(enum mode mode, int iterations, int in, int out)
{
	struct message request = { .mode = (int)mode }, answer;
	double before = bench_now_ns();

	for (int i = 0; i < iterations; i++)
		ITERATION(mode, blkin_init_new_trace(&trace, "request", &endpoint); request.info = trace.info,
			  blkin_span_root(&span, "request", &endpoint); request.info = span.trace.info,
			  put(out, &request); get(in, &answer));
	return (bench_now_ns() - before) / 1e9;
}

int main(int argc, char **argv)
{
	int repetitions = argc > 2 ? atoi(argv[2]) : 10, iterations = argc > 3 ? atoi(argv[3]) : 10000;
	int requests[2], answers[2], status;
	enum mode mode = NONE;

	while (argc > 1 && mode <= LTTNG && strcmp(modes[mode], argv[1]))
		mode++;
	if (argc < 2 || mode > LTTNG || pipe(requests) || pipe(answers))
		return 2;
	if (fork() == 0) {
		serve(requests[0], answers[1]);
		return 0;
	}
	blkin_init_endpoint(&endpoint, "10.0.0.1", 6800, "client");
	block(BASE, iterations / 10, answers[0], requests[1]);
	block(mode, iterations / 10, answers[0], requests[1]);
	for (int i = 0; i < repetitions; i++) {
		printf("pipe-base\ts\t%.7f\n", block(BASE, iterations, answers[0], requests[1]));
		printf("pipe-%s\ts\t%.7f\n", argv[1], block(mode, iterations, answers[0], requests[1]));
	}
	put(requests[1], &(struct message){ .mode = -1 });
	wait(&status);
	return status ? 1 : 0;
}
