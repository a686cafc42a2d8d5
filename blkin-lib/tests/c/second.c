/* A second file of the same program: header, macros and constants again. */
#include "expect.h"

void record_from_another_file(const struct blkin_trace *trace);

void record_from_another_file(const struct blkin_trace *trace)
{
	struct blkin_endpoint e;

	CHECK(blkin_init_endpoint(&e, "10.0.0.2", 2, "second") == 0);
	BLKIN_TIMESTAMP(trace, &e, WIRE_SEND);
	expect(&trace->info, trace->name, "10.0.0.2", 2, "second", "ws", "!");
}
