/* LTTng-UST's calls. */
#include <stddef.h>
#include <string.h>

#include "bench.h"
#include "lttng_peer.h"

static int64_t ids[3] = { 0x1234567890abcdef, 0x1234567890abcdef, 0x0fedcba098765432 };

static char long_text[LONG_BYTES + 1];

void bench_setup(void)
{
	memset(long_text, 'x', LONG_BYTES);
}

BENCH_CASE(bare_loop, )
BENCH_CASE(annotation,
	   lttng_ust_tracepoint(blkin_peer, annotation, ids[0], ids[1] + i, ids[2], "Main", "Enqueued op"))
BENCH_CASE(annotation_long,
	   lttng_ust_tracepoint(blkin_peer, annotation, ids[0], ids[1] + i, ids[2], "Main", long_text))
BENCH_CASE(enqueued_op, lttng_ust_tracepoint(blkin_peer, enqueued_op, ids[0], ids[1] + i, ids[2]))
BENCH_CASE(off, lttng_ust_tracepoint(blkin_peer, off, ids[0]))

const struct bench_case bench_cases[] = {
	{ "bare-loop", bare_loop, NULL },
	{ "lttng", annotation, NULL },
	{ "lttng-long", annotation_long, NULL },
	{ "lttng-event", enqueued_op, NULL },
	{ "lttng-off", off, NULL },
	{ NULL, NULL, NULL },
};
