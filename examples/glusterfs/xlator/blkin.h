/*
 * blkin.h - a GlusterFS translator that traces file operations.
 *
 * Each instance in the graph makes one span of every request that passes, for the work of the translators below it. The
 * ids travel in the request's xdata, which GlusterFS carries through every translator and over the network:
 *
 *   layer     where in the graph                 its span                        begins  ends
 *   client    on top of the client's graph       the root, one for an operation  cs      cr
 *   replica   above each protocol/client         the call to one brick           cs      cr
 *   server    below protocol/server              the brick's work                sr      ss
 *   disk      above storage/posix                the file system's work          start   end
 *
 * Any layer may be left out. Only a client begins traces; the other layers trace only requests that carry ids.
 * If tracing fails, the operation goes on untraced: the translator never causes an I/O error.
 */
#ifndef BLKIN_XLATOR_H
#define BLKIN_XLATOR_H

#include <glusterfs/xlator.h>
#include <glusterfs/defaults.h>
#include <glusterfs/mem-types.h>

#include <blkin/zipkin_c.h>

/* The properties of a layer. */
struct layer {
	const char *name;
	bool begins_traces; /* for a request without ids */
	bool describes;	    /* records file, offset and size; the layers between need not repeat them */
	struct blkin_name first;
	struct blkin_name last;
};

/* One instance of the translator: the `private` of its xlator. Without it an instance traces nothing. */
struct tracer {
	struct blkin_endpoint endpoint;
	struct layer *layer;
	bool passes_on; /* a translator below understands the ids in xdata */
};

/* A traced operation under way: the `local` of its frame, used only by the thread that has the frame. */
struct operation {
	struct blkin_span span;
	bool describes;
};

/* For GlusterFS' memory accounting. */
enum { MEMORY_IDS = gf_common_mt_end + 1, MEMORY_TRACER, MEMORY_TYPES };

extern struct xlator_fops traced_fops;

/*
 * operation_begin - begin the span of an operation
 *
 * *onward is the xdata for the request from here on, a new reference, which the caller must unref. It is valid only if an
 * operation is returned.
 *
 * Returns the operation, which the caller puts into the frame. NULL: untraced; hand the request on as it is.
 */
struct operation *operation_begin(xlator_t *this, const char *name, dict_t *xdata, dict_t **onward);

/* Record details of an operation; they do nothing in a layer whose `describes` is false. */
void operation_on_fd(const struct operation *self, const fd_t *fd);
void operation_on_path(const struct operation *self, const loc_t *loc);
void operation_range(const struct operation *self, off_t offset, size_t size);

/* The operation is done, or has failed. */
void operation_end(const struct operation *self, const xlator_t *this, int32_t op_ret, int32_t op_errno);

#endif /* BLKIN_XLATOR_H */
