/* The bare LTTng-UST tracepoint that carries what one BlkKin annotation carries: three ids and two strings. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER blkin_peer

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./lttng_peer.h"

#if !defined(LTTNG_PEER_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define LTTNG_PEER_H

#include <lttng/tracepoint.h>

LTTNG_UST_TRACEPOINT_EVENT(
	blkin_peer, annotation,
	LTTNG_UST_TP_ARGS(long, trace, long, span, long, parent, const char *, name, const char *, event),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(long, trace, trace)
		lttng_ust_field_integer(long, span, span)
		lttng_ust_field_integer(long, parent, parent)
		lttng_ust_field_string(name, name)
		lttng_ust_field_string(event, event)
	)
)

#endif

#include <lttng/tracepoint-event.h>
