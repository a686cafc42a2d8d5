/*
 * A program that MemorySanitizer watches. It does not see what the library writes, which it does not instrument: so what the
 * library fills in is set to 0 where it is declared.
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
