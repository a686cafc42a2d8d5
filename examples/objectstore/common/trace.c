/* trace.c - every call into the BlkKin library goes through here, and is counted. */
#include "trace.h"

#include <stdatomic.h>

static atomic_uint_fast64_t roots;
static atomic_uint_fast64_t annotations;

static const char *const detail[] = {
	"Detail 1", "Detail 2", "Detail 3", "Detail 4", "Detail 5", "Detail 6", "Detail 7", "Detail 8",
};
#define DETAILS (sizeof detail / sizeof *detail)

static void count(const span *self)
{
	if (self->info.trace_id != 0)
		atomic_fetch_add_explicit(&annotations, 1, memory_order_relaxed);
}

void span_root(span *self, const char *name, const struct blkin_endpoint *endpoint)
{
	blkin_init_new_trace(self, name, endpoint);
	if (self->info.trace_id != 0)
		atomic_fetch_add_explicit(&roots, 1, memory_order_relaxed);
}

void span_child(span *child, const span *parent, const char *name, const struct blkin_endpoint *endpoint)
{
	blkin_init_child(child, parent, endpoint, name);
}

void span_child_of(span *child, const struct blkin_trace_info *parent, const char *name,
		   const struct blkin_endpoint *endpoint)
{
	blkin_init_child_info(child, parent, endpoint, name);
}

void span_join(span *self, const struct blkin_trace_info *info, const char *name,
	       const struct blkin_endpoint *endpoint)
{
	blkin_set_trace_properties(self, info, name, endpoint);
}

void span_event(const span *self, const char *event)
{
	span_event_at(self, self->endpoint, event);
}

void span_event_at(const span *self, const struct blkin_endpoint *endpoint, const char *event)
{
	count(self);
	BLKIN_TIMESTAMP(self, endpoint, event);
}

void span_string(const span *self, const char *key, const char *value)
{
	count(self);
	BLKIN_KEYVAL_STRING(self, self->endpoint, key, value);
}

void span_integer(const span *self, const char *key, int64_t value)
{
	count(self);
	BLKIN_KEYVAL_INTEGER(self, self->endpoint, key, value);
}

void span_pad(const span *self, enum layer layer, unsigned wanted)
{
	unsigned extra, share;

	if (wanted <= TRACE_REFERENCE_ANNOTATIONS || self->info.trace_id == 0)
		return;
	extra = wanted - TRACE_REFERENCE_ANNOTATIONS;
	share = extra / LAYERS + ((unsigned)layer < extra % LAYERS);
	for (unsigned n = 0; n < share; n++)
		span_event(self, detail[n % DETAILS]);
}

uint64_t trace_roots(void)
{
	return atomic_load_explicit(&roots, memory_order_relaxed);
}

uint64_t trace_annotations(void)
{
	return atomic_load_explicit(&annotations, memory_order_relaxed);
}
