/*
 * All headers and every macro, to be compiled in each language and standard with all warnings: a header must not cause warnings
 * in a program that enables more of them than its author did. Never run.
 */
#include <blkin-front.h>
#include <zipkin_c.h>

void blkin_test_macros(const struct blkin_trace *trace, const struct blkin_endpoint *endpoint);
int blkin_test_record(const struct blkin_trace *trace, const struct blkin_endpoint *endpoint);

int blkin_test_record(const struct blkin_trace *trace, const struct blkin_endpoint *endpoint)
{
	struct blkin_annotation annotation;

	if (blkin_init_timestamp_annotation(&annotation, SERVER_RECV, endpoint) != 0)
		return 1;
	return blkin_record(trace, &annotation);
}

void blkin_test_macros(const struct blkin_trace *trace, const struct blkin_endpoint *endpoint)
{
	struct blkin_span span;

	if (blkin_span_of(&span, trace) != 0)
		return;
	BLKIN_EVENT(&span, "event");
	BLKIN_INTEGER(&span, "key", 7);
	BLKIN_STRING(&span, "key", "value");
	BLKIN_EVENT_AT(BLKIN_LEVEL_DEBUG, &span, "event");
	BLKIN_INTEGER_AT(BLKIN_LEVEL_INFO, &span, "key", 7);
	BLKIN_STRING_AT(BLKIN_LEVEL_ERR, &span, "key", "value");
	BLKIN_TIMESTAMP(trace, endpoint, SERVER_RECV);
	BLKIN_KEYVAL_STRING(trace, endpoint, "key", "value");
	BLKIN_KEYVAL_INTEGER(trace, endpoint, "key", 7);
	BLKIN_KEYVAL(trace, endpoint, "key", "value");
}

#ifdef __cplusplus
#include <ztracer.hpp>

void blkin_test_classes();

void blkin_test_classes()
{
	const ZTracer::Endpoint endpoint("127.0.0.1", 8080, "service");
	const ZTracer::Trace trace("span", &endpoint);
	trace.event("event", &endpoint);
	trace.keyval("key", 7);
	trace.keyval("key", 0);
	trace.keyval("key", 0U, &endpoint);
	blkin_span span;
	if (trace.span_of(&span) == 0)
		BLKIN_EVENT(&span, "event");
	const ZTracer::ScopedSpan scope(trace);
	BLKIN_EVENT(scope, "event");
	const ZTracer::ZTraceRef other = ZTracer::create_ZTrace("span", ZTracer::create_ZTraceEndpoint("::1", 1, "service"));
	other->keyval("key", "value");
}
#endif
