/* syslog(3) to a daemon that writes to a file. */
#include <stddef.h>
#include <syslog.h>

#include "bench.h"

void bench_setup(void)
{
	openlog("blkin-bench", LOG_PID, LOG_USER);
}

BENCH_CASE(bare_loop, )
BENCH_CASE(line, syslog(LOG_WARNING, "%llx %llx %llx %s %s", 0x1234567890abcdefULL, 0x1234567890abcdefULL + i,
			0x0fedcba098765432ULL, "Main", "Enqueued op"))

const struct bench_case bench_cases[] = {
	{ "bare-loop", bare_loop, NULL },
	{ "syslog", line, NULL },
	{ NULL, NULL, NULL },
};
