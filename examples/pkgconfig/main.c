/* A program built with make and pkg-config. Records one span and prints its trace id. */
#include <inttypes.h>
#include <stdio.h>
#include <zipkin_c.h>

int main(void)
{
	struct blkin_endpoint here;
	struct blkin_trace trace;

	blkin_init_endpoint(&here, "127.0.0.1", 7001, "example-pkgconfig");
	blkin_init_new_trace(&trace, "work", &here);
	BLKIN_TIMESTAMP(&trace, NULL, SERVER_RECV);
	BLKIN_KEYVAL_STRING(&trace, NULL, "built with", "pkg-config");
	BLKIN_TIMESTAMP(&trace, NULL, SERVER_SEND);
	printf("%016" PRIx64 "\n", (uint64_t)trace.info.trace_id);
	return 0;
}
