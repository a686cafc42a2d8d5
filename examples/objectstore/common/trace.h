/*
 * trace.h - the object store's instrumentation, over the BlkKin C library.
 *
 * One put makes this trace of 17 spans, ten deep (see README.md):
 *
 *   bench
 *   └ vlmc
 *     ├ mapper
 *     └ radosd
 *       └ librados                  (endpoints ioctx, objecter)
 *         └ mosdop                  (shared by gateway and primary: cs sr ss cr)
 *           └ OSD Handling op       (endpoints osd.0, pg 1.7)
 *             ├ Main, mosdopreply   (ack)
 *             ├ mosdsubop           (shared by primary and replica: cs sr ss cr)
 *             │ └ OSD Handling op   (endpoints osd.1, pg 1.7)
 *             │   ├ Journal access
 *             │   ├ Filestore access
 *             │   └ Main, mosdsubopreply
 *             │     └ OSD Handling op (endpoints osd.0, pg 1.7)
 *             ├ Journal access
 *             ├ Filestore access
 *             └ Main, mosdopreply   (commit)
 */
#ifndef OBJSTORE_TRACE_H
#define OBJSTORE_TRACE_H

#ifdef OBJSTORE_NO_TRACING
#include "no_blkin.h"
#else
#include <blkin/zipkin_c.h>
#endif

#include <stdint.h>

/* Annotations of one put without --annotations (README.md counts them; test/cluster.py checks the sum). */
#define TRACE_REFERENCE_ANNOTATIONS 98
#define TRACE_MAX_ANNOTATIONS 10000

/* Ends a span that is neither a client's (cr) nor a server's (ss). */
#define SPAN_ENDED "Span ended"

/* The 17 spans of a put, in the order of the picture above. */
enum layer {
	LAYER_BENCH,
	LAYER_VLMC,
	LAYER_MAPPER,
	LAYER_RADOSD,
	LAYER_LIBRADOS,
	LAYER_MOSDOP,
	LAYER_PRIMARY,
	LAYER_ACK,
	LAYER_MOSDSUBOP,
	LAYER_REPLICA,
	LAYER_REPLICA_JOURNAL,
	LAYER_REPLICA_FILESTORE,
	LAYER_MOSDSUBOPREPLY,
	LAYER_PRIMARY_REPLY,
	LAYER_PRIMARY_JOURNAL,
	LAYER_PRIMARY_FILESTORE,
	LAYER_COMMIT,
	LAYERS,
};

/* A span may be unsampled (all ids 0): the functions below then do nothing with it. */
typedef struct blkin_trace span;

void span_root(span *self, const char *name, const struct blkin_endpoint *endpoint);
void span_child(span *child, const span *parent, const char *name, const struct blkin_endpoint *endpoint);
/* A child of a span that began in another process. */
void span_child_of(span *child, const struct blkin_trace_info *parent, const char *name,
		   const struct blkin_endpoint *endpoint);
/* Our side of a span that another process began. */
void span_join(span *self, const struct blkin_trace_info *info, const char *name,
	       const struct blkin_endpoint *endpoint);

void span_event(const span *self, const char *event);
void span_event_at(const span *self, const struct blkin_endpoint *endpoint, const char *event);
void span_string(const span *self, const char *key, const char *value);
void span_integer(const span *self, const char *key, int64_t value);

/*
 * Pads the span to its share of a put with `wanted` annotations (0: none). The shares of the 17 layers
 * add up to exactly wanted - TRACE_REFERENCE_ANNOTATIONS.
 */
void span_pad(const span *self, enum layer layer, unsigned wanted);

/* Counts of this process so far: sampled roots, and annotations on sampled spans. */
uint64_t trace_roots(void);
uint64_t trace_annotations(void);

#endif
