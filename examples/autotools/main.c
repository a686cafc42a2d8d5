/* A program built with autotools, with or without BlkKin. Records one span and prints its trace id. */
#include <inttypes.h>
#include <stdio.h>

#include "config.h"
#ifdef HAVE_BLKIN
#include <blkin/zipkin_c.h>
#endif

int main(void)
{
#ifdef HAVE_BLKIN
	struct blkin_endpoint here;
	struct blkin_trace trace;

	blkin_init_endpoint(&here, "127.0.0.1", 7003, "example-autotools");
	blkin_init_new_trace(&trace, "work", &here);
	BLKIN_TIMESTAMP(&trace, NULL, SERVER_RECV);
	BLKIN_KEYVAL_STRING(&trace, NULL, "built with", "autotools");
	BLKIN_TIMESTAMP(&trace, NULL, SERVER_SEND);
	printf("%016" PRIx64 "\n", (uint64_t)trace.info.trace_id);
#endif
	return 0;
}
