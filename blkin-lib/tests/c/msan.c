/*
 * A program for MemorySanitizer, which does not see the library's writes because the library is not instrumented. Structs that
 * the library fills in are therefore set to 0 where they are declared.
 */
#include "expect.h"

int main(void)
{
	struct blkin_endpoint osd = {0};
	struct blkin_trace put = {0};
	struct blkin_trace_info sent = {0};
	struct blkin_span span = {0};

	CHECK(blkin_init_endpoint(&osd, "10.0.0.1", 6800, "osd") == 0);
	CHECK(blkin_init_new_trace(&put, "put", &osd) == 0);
	BLKIN_TIMESTAMP(&put, NULL, "arrives");
	expect(&put.info, "put", "10.0.0.1", 6800, "osd", "arrives", "!");
	CHECK(blkin_get_trace_info(&put, &sent) == 0);
	CHECK(blkin_span_child(&span, &sent, "write", &osd) == 0);
	BLKIN_EVENT(&span, "journalled");
	expect(&span.trace.info, "write", "10.0.0.1", 6800, "osd", "journalled", "!");
	BLKIN_STRING(&span, "object", "alpha");
	expect(&span.trace.info, "write", "10.0.0.1", 6800, "osd", "object", "=alpha");
	return 0;
}
