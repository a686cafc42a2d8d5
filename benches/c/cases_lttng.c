/* LTTng-UST's calls. */
#include <stddef.h>

#include "bench.h"
#include "lttng_peer.h"

static int64_t ids[3] = { 0x1234567890abcdef, 0x1234567890abcdef, 0x0fedcba098765432 };

void bench_setup(void) {}

BENCH_CASE(bare_loop, )
BENCH_CASE(annotation,
	   lttng_ust_tracepoint(blkin_peer, annotation, ids[0], ids[1] + i, ids[2], "Main", "Enqueued op"))
BENCH_CASE(enqueued_op, lttng_ust_tracepoint(blkin_peer, enqueued_op, ids[0], ids[1] + i, ids[2]))
BENCH_CASE(off, lttng_ust_tracepoint(blkin_peer, off, ids[0]))

const struct bench_case bench_cases[] = {
	{ "bare-loop", bare_loop, NULL },
	{ "lttng", annotation, NULL },
	{ "lttng-event", enqueued_op, NULL },
	{ "lttng-off", off, NULL },
	{ NULL, NULL, NULL },
};
