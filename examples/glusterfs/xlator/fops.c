/*
 * fops.c - the traced operations, one TRACED() for each. All other operations pass untouched.
 */

#include "blkin.h"

/* LIST((a, b)) is a, b: so a macro can take a list of parameters as one argument. */
#define LIST(...) LIST_ __VA_ARGS__
#define LIST_(...) __VA_ARGS__

/*
 * TRACED(fop, (its parameters before xdata), (their names), (its callback's parameters behind op_errno), (their names),
 *        the details to record)
 *
 * An operation that is not traced goes to the child as a tail call, without a frame of its own. The callback runs
 * once, in any thread, even if a translator below fails the operation; it takes the operation out of the frame
 * before unwinding, because the frame may be freed by that.
 */
#define TRACED(fop, PARAMETERS, NAMES, CBK_PARAMETERS, CBK_NAMES, DETAILS)                                      \
	static int32_t traced_##fop##_cbk(call_frame_t *frame, void *cookie, xlator_t *this, int32_t op_ret,       \
					  int32_t op_errno, LIST(CBK_PARAMETERS))                                  \
	{                                                                                                          \
		struct operation *operation = frame->local;                                                        \
                                                                                                                   \
		(void)cookie;                                                                                      \
		frame->local = NULL;                                                                               \
		operation_end(operation, this, op_ret, op_errno);                                                  \
		STACK_UNWIND_STRICT(fop, frame, op_ret, op_errno, LIST(CBK_NAMES));                                \
		mem_put(operation);                                                                                \
		return 0;                                                                                          \
	}                                                                                                          \
                                                                                                                   \
	static int32_t traced_##fop(call_frame_t *frame, xlator_t *this, LIST(PARAMETERS), dict_t *xdata)          \
	{                                                                                                          \
		dict_t *onward = NULL;                                                                             \
		struct operation *operation = operation_begin(this, #fop, xdata, &onward);                         \
                                                                                                                   \
		if (!operation) {                                                                                  \
			STACK_WIND_TAIL(frame, FIRST_CHILD(this), FIRST_CHILD(this)->fops->fop, LIST(NAMES),       \
					xdata);                                                                    \
			return 0;                                                                                  \
		}                                                                                                  \
		frame->local = operation;                                                                          \
		DETAILS;                                                                                           \
		STACK_WIND(frame, traced_##fop##_cbk, FIRST_CHILD(this), FIRST_CHILD(this)->fops->fop, LIST(NAMES), \
			   onward);                                                                                \
		dict_unref(onward);                                                                                \
		return 0;                                                                                          \
	}

#define FD operation_on_fd(operation, fd)
#define PATH operation_on_path(operation, loc)
#define RANGE(offset, size) operation_on_fd(operation, fd), operation_range(operation, offset, size)

TRACED(lookup, (loc_t *loc), (loc),
       (inode_t *inode, struct iatt *buf, dict_t *xdata, struct iatt *postparent), (inode, buf, xdata, postparent), PATH)
TRACED(create, (loc_t *loc, int32_t flags, mode_t mode, mode_t umask, fd_t *fd), (loc, flags, mode, umask, fd),
       (fd_t *fd, inode_t *inode, struct iatt *buf, struct iatt *preparent, struct iatt *postparent, dict_t *xdata),
       (fd, inode, buf, preparent, postparent, xdata), PATH)
TRACED(open, (loc_t *loc, int32_t flags, fd_t *fd), (loc, flags, fd), (fd_t *fd, dict_t *xdata), (fd, xdata), PATH)
TRACED(readv, (fd_t *fd, size_t size, off_t offset, uint32_t flags), (fd, size, offset, flags),
       (struct iovec *vector, int32_t count, struct iatt *stbuf, struct iobref *iobref, dict_t *xdata),
       (vector, count, stbuf, iobref, xdata), RANGE(offset, size))
TRACED(writev, (fd_t *fd, struct iovec *vector, int32_t count, off_t offset, uint32_t flags, struct iobref *iobref),
       (fd, vector, count, offset, flags, iobref), (struct iatt *prebuf, struct iatt *postbuf, dict_t *xdata),
       (prebuf, postbuf, xdata), RANGE(offset, iov_length(vector, count)))
TRACED(flush, (fd_t *fd), (fd), (dict_t *xdata), (xdata), FD)
TRACED(fsync, (fd_t *fd, int32_t datasync), (fd, datasync),
       (struct iatt *prebuf, struct iatt *postbuf, dict_t *xdata), (prebuf, postbuf, xdata), FD)
TRACED(ftruncate, (fd_t *fd, off_t offset), (fd, offset), (struct iatt *prebuf, struct iatt *postbuf, dict_t *xdata),
       (prebuf, postbuf, xdata), FD)
TRACED(unlink, (loc_t *loc, int xflags), (loc, xflags),
       (struct iatt *preparent, struct iatt *postparent, dict_t *xdata), (preparent, postparent, xdata), PATH)

struct xlator_fops traced_fops = {
	.lookup = traced_lookup,
	.create = traced_create,
	.open = traced_open,
	.readv = traced_readv,
	.writev = traced_writev,
	.flush = traced_flush,
	.fsync = traced_fsync,
	.ftruncate = traced_ftruncate,
	.unlink = traced_unlink,
};
