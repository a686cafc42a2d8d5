/*
 * Records, in each of a thousand traces, four events in a row at two endpoints. Their names are in another order than the
 * alphabet's, and many are recorded within one microsecond.
 *
 * Prints "ready"; each line on stdin starts a round, at whose end it prints "wrote CALLS"; ends at the end of stdin.
 */
#include <blkin/zipkin_c.h>
#include <stdio.h>

#define TRACES 1000

static struct blkin_endpoint osd, pg;

static long one_trace(void)
{
	struct blkin_trace trace;

	blkin_init_new_trace(&trace, "op", &osd);
	if (trace.info.trace_id == 0)
		return 0;
	BLKIN_TIMESTAMP(&trace, &osd, "Handling op");
	BLKIN_TIMESTAMP(&trace, &pg, "Enqueuing op");
	BLKIN_TIMESTAMP(&trace, &pg, "Enqueued op");
	BLKIN_TIMESTAMP(&trace, &osd, "Dequeued op");
	return 4;
}

int main(void)
{
	char line[16];

	if (blkin_init() != 0)
		return 1;
	blkin_init_endpoint(&osd, "127.0.0.1", 6800, "osd.0");
	blkin_init_endpoint(&pg, "127.0.0.1", 6800, "pg 1.7");
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		long calls = 0;

		for (int i = 0; i < TRACES; i++)
			calls += one_trace();
		printf("wrote %ld\n", calls);
		fflush(stdout);
	}
	return 0;
}
