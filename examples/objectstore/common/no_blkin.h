/*
 * no_blkin.h - what `make TRACING=no` compiles in place of <blkin/zipkin_c.h>.
 *
 * The same structs, so that a message keeps its 24 bytes of trace info, and functions that do nothing. With it the same
 * sources give the baseline of an overhead measurement, without the library.
 */
#ifndef OBJSTORE_NO_BLKIN_H
#define OBJSTORE_NO_BLKIN_H

#include <stdint.h>
#include <string.h>

#define CLIENT_SEND "cs"
#define CLIENT_RECV "cr"
#define SERVER_SEND "ss"
#define SERVER_RECV "sr"
#define WIRE_SEND "ws"
#define WIRE_RECV "wr"

struct blkin_endpoint {
	const char *ip;
	int port;
	const char *name;
};

struct blkin_trace_info {
	int64_t trace_id;
	int64_t span_id;
	int64_t parent_span_id;
};

struct blkin_trace_info_packed {
	unsigned char bytes[24];
};

struct blkin_trace {
	const char *name;
	struct blkin_trace_info info;
	const struct blkin_endpoint *endpoint;
};

static inline int blkin_init(void)
{
	return 0;
}

static inline int blkin_init_endpoint(struct blkin_endpoint *endpoint, const char *ip, int16_t port, const char *name)
{
	endpoint->ip = ip;
	endpoint->port = port;
	endpoint->name = name;
	return 0;
}

static inline int blkin_init_new_trace(struct blkin_trace *trace, const char *name,
				       const struct blkin_endpoint *endpoint)
{
	memset(trace, 0, sizeof *trace);
	trace->name = name;
	trace->endpoint = endpoint;
	return 0;
}

static inline int blkin_init_child(struct blkin_trace *child, const struct blkin_trace *parent,
				   const struct blkin_endpoint *endpoint, const char *name)
{
	return blkin_init_new_trace(child, name, endpoint ? endpoint : parent->endpoint);
}

static inline int blkin_init_child_info(struct blkin_trace *child, const struct blkin_trace_info *info,
					const struct blkin_endpoint *endpoint, const char *name)
{
	(void)info;
	return blkin_init_new_trace(child, name, endpoint);
}

static inline int blkin_set_trace_properties(struct blkin_trace *trace, const struct blkin_trace_info *info,
					     const char *name, const struct blkin_endpoint *endpoint)
{
	(void)info;
	return blkin_init_new_trace(trace, name, endpoint);
}

static inline int blkin_pack_trace_info(const struct blkin_trace_info *info, struct blkin_trace_info_packed *packed)
{
	(void)info;
	memset(packed, 0, sizeof *packed);
	return 0;
}

static inline int blkin_unpack_trace_info(const struct blkin_trace_info_packed *packed, struct blkin_trace_info *info)
{
	(void)packed;
	memset(info, 0, sizeof *info);
	return 0;
}

#define BLKIN_TIMESTAMP(trace, endp, event) \
	do {                                \
		(void)(trace);              \
		(void)(endp);               \
		(void)(event);              \
	} while (0)
#define BLKIN_KEYVAL_STRING(trace, endp, key, val) \
	do {                                       \
		(void)(trace);                     \
		(void)(endp);                      \
		(void)(key);                       \
		(void)(val);                       \
	} while (0)
#define BLKIN_KEYVAL_INTEGER(trace, endp, key, val) BLKIN_KEYVAL_STRING(trace, endp, key, val)

#endif
