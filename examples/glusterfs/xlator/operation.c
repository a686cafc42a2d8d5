/* operation.c - the span of one operation, and its ids in the xdata of the request. */

#include "blkin.h"

/* The 24 bytes of struct blkin_trace_info_packed. */
#define IDS_KEY "blkin.trace-info"

/* Reads the ids of the span that this request is part of. The sender is not trusted: the value may be anything. */
static bool take_ids(dict_t *xdata, struct blkin_trace_info *ids)
{
	void *packed = NULL;
	int length = 0;

	if (!xdata || dict_get_ptr_and_len(xdata, IDS_KEY, &packed, &length) != 0)
		return false;
	if (length != (int)sizeof(struct blkin_trace_info_packed))
		return false;
	blkin_unpack_trace_info(packed, ids);
	return ids->trace_id != 0;
}

/* The dict owns the bytes, because translators keep its values for longer than the operation takes. */
static bool put_ids(dict_t *xdata, const struct blkin_trace_info *ids)
{
	struct blkin_trace_info_packed *packed = GF_MALLOC(sizeof(*packed), MEMORY_IDS);

	if (!packed)
		return false;
	blkin_pack_trace_info(ids, packed);
	if (dict_set_bin(xdata, IDS_KEY, packed, sizeof(*packed)) == 0)
		return true;
	GF_FREE(packed);
	return false;
}

/* A copy, because replicate hands the same dict to every subvolume; the values are shared. */
static dict_t *copy_of(dict_t *xdata)
{
	return xdata ? dict_copy_with_ref(xdata, NULL) : dict_new();
}

/*
 * The xdata for the request from here on: with the ids of this span, or without ids if no translator below understands
 * them, because storage/posix would take them for an extended attribute of a new file.
 */
static dict_t *onward_of(const struct tracer *tracer, dict_t *xdata, const struct blkin_trace_info *ids)
{
	dict_t *onward = copy_of(xdata);

	if (!onward)
		return NULL;
	if (!tracer->passes_on) {
		dict_del(onward, IDS_KEY);
		return onward;
	}
	if (put_ids(onward, ids))
		return onward;
	dict_unref(onward);
	return NULL;
}

/* Makes the span's ids: a child if the request carries ids, else a root if this layer begins traces and it is sampled. */
static bool begin_trace(const struct tracer *tracer, const char *name, dict_t *xdata, struct blkin_trace *trace)
{
	struct blkin_trace_info parent;

	if (take_ids(xdata, &parent))
		return blkin_init_child_info(trace, &parent, &tracer->endpoint, name) == 0;
	if (!tracer->layer->begins_traces || !blkin_is_on(BLKIN_LEVEL_WARNING))
		return false;
	return blkin_init_new_trace(trace, name, &tracer->endpoint) == 0 && trace->info.trace_id != 0;
}

static void record(const struct operation *self, struct blkin_name *event)
{
	if (blkin_is_on(BLKIN_LEVEL_WARNING))
		blkin_span_event(&self->span, event, BLKIN_LEVEL_WARNING);
}

struct operation *operation_begin(xlator_t *this, const char *name, dict_t *xdata, dict_t **onward)
{
	const struct tracer *tracer = this->private;
	struct blkin_trace trace;
	struct operation *self;

	if (!tracer || !begin_trace(tracer, name, xdata, &trace))
		return NULL;
	self = mem_get0(this->local_pool);
	if (!self)
		return NULL;
	*onward = onward_of(tracer, xdata, &trace.info);
	if (!*onward || blkin_span_of(&self->span, &trace) != 0) {
		if (*onward)
			dict_unref(*onward);
		*onward = NULL;
		mem_put(self);
		return NULL;
	}
	self->describes = tracer->layer->describes;
	record(self, &tracer->layer->first);
	return self;
}

static void describe_gfid(const struct operation *self, const uuid_t gfid)
{
	char text[GF_UUID_BUF_SIZE];
	uuid_t copy;

	gf_uuid_copy(copy, gfid);
	BLKIN_STRING(&self->span, "gfid", uuid_utoa_r(copy, text));
}

void operation_on_fd(const struct operation *self, const fd_t *fd)
{
	if (self->describes)
		describe_gfid(self, fd->inode->gfid);
}

void operation_on_path(const struct operation *self, const loc_t *loc)
{
	if (!self->describes)
		return;
	if (loc->path)
		BLKIN_STRING(&self->span, "path", loc->path);
	else
		describe_gfid(self, loc->gfid);
}

void operation_range(const struct operation *self, off_t offset, size_t size)
{
	if (!self->describes)
		return;
	BLKIN_INTEGER(&self->span, "offset", offset);
	BLKIN_INTEGER(&self->span, "size", (int64_t)size);
}

void operation_end(const struct operation *self, const xlator_t *this, int32_t op_ret, int32_t op_errno)
{
	const struct tracer *tracer = this->private;

	if (op_ret < 0) {
		const char *error = strerrorname_np(op_errno);

		BLKIN_STRING(&self->span, "error", error ? error : "unknown");
	}
	record(self, &tracer->layer->last);
}
