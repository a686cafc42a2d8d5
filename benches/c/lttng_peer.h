/* Bare LTTng-UST tracepoints. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER blkin_peer

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./lttng_peer.h"

#if !defined(LTTNG_PEER_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define LTTNG_PEER_H

#include <lttng/tracepoint.h>

/* Carries the same as an annotation of BlkKin: three ids and two strings. */
LTTNG_UST_TRACEPOINT_EVENT(
	blkin_peer, annotation,
	LTTNG_UST_TP_ARGS(int64_t, trace, int64_t, span, int64_t, parent, const char *, name, const char *, event),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(int64_t, trace, trace)
		lttng_ust_field_integer(int64_t, span, span)
		lttng_ust_field_integer(int64_t, parent, parent)
		lttng_ust_field_string(name, name)
		lttng_ust_field_string(event, event)
	)
)

/* How LTTng represents an event with a literal name: the tracepoint itself is the name. */
LTTNG_UST_TRACEPOINT_EVENT(
	blkin_peer, enqueued_op,
	LTTNG_UST_TP_ARGS(int64_t, trace, int64_t, span, int64_t, parent),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(int64_t, trace, trace)
		lttng_ust_field_integer(int64_t, span, span)
		lttng_ust_field_integer(int64_t, parent, parent)
	)
)

/* No session enables this one. */
LTTNG_UST_TRACEPOINT_EVENT(
	blkin_peer, off,
	LTTNG_UST_TP_ARGS(int64_t, trace),
	LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(int64_t, trace, trace))
)

#endif

#include <lttng/tracepoint-event.h>
