/*
 * blkin.h - a GlusterFS translator that traces file operations.
 *
 * One instance stands where a request passes and makes one span of what is below it. The ids travel in the request's
 * xdata, which GlusterFS carries through every translator and over the network:
 *
 *   layer     where in the graph                 its span                        begins  ends
 *   client    on top of the client's graph       the root, one for an operation  cs      cr
 *   replica   above each protocol/client         what one brick is asked         cs      cr
 *   server    below protocol/server              what the brick does             sr      ss
 *   disk      above storage/posix                what its file system does       start   end
 *
 * Any of them may be left out. Only a client begins traces; the others trace what comes with ids, and nothing else.
 * If anything is wrong with tracing the operation goes on untraced: no error of an IO comes from here.
 */
#ifndef BLKIN_XLATOR_H
#define BLKIN_XLATOR_H

#include <glusterfs/xlator.h>
#include <glusterfs/defaults.h>
#include <glusterfs/mem-types.h>

#include <blkin/zipkin_c.h>

/* What sets one layer apart from another. */
struct layer {
	const char *name;
	bool begins_traces; /* where a request comes without ids */
	bool describes;	    /* file, offset and size, which the layers between need not repeat */
	struct blkin_name first;
	struct blkin_name last;
};

/* One instance of the translator, its xlator's private. An instance without one traces nothing. */
struct tracer {
	struct blkin_endpoint endpoint;
	struct layer *layer;
	bool passes_on; /* somebody below knows what the ids in xdata are */
};

/* An operation under way that is traced, its frame's local. Whichever thread has the frame has it. */
struct operation {
	struct blkin_span span;
	bool describes;
};

/* For GlusterFS' account of memory. */
enum { MEMORY_IDS = gf_common_mt_end + 1, MEMORY_TRACER, MEMORY_TYPES };

extern struct xlator_fops traced_fops;

/*
 * operation_begin - begin the span of an operation
 *
 * *onward is what the request carries from here on: a new reference to unref, or NULL with no xdata. It is set only if there
 * is a span.
 *
 * Returns the operation, which belongs to the frame from then on; NULL: untraced, hand the request on as it is.
 */
struct operation *operation_begin(xlator_t *this, const char *name, dict_t *xdata, dict_t **onward);

/* What is said of an operation; each does nothing in a layer that does not describe. */
void operation_on_fd(const struct operation *self, const fd_t *fd);
void operation_on_path(const struct operation *self, const loc_t *loc);
void operation_range(const struct operation *self, off_t offset, size_t size);

/* The operation is done, or has failed. */
void operation_end(const struct operation *self, const xlator_t *this, int32_t op_ret, int32_t op_errno);

#endif /* BLKIN_XLATOR_H */
