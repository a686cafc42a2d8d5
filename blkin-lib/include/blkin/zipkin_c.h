/*
 * zipkin_c.h - tracing for C programs: traces, spans and their annotations.
 *
 * One header for every BlkKin dialect: the fields and names of the original branch (trace_endpoint,
 * annotation_endpoint, val, BLKIN_KEYVAL, int ports, non-const arguments) and those of the later ones mean
 * the same thing here. C from C89 on and C++ from C++11 on; link with -lblkin (see blkin.pc, or find_package(Blkin)).
 *
 * What holds for every function below, unless it says otherwise:
 *
 *  Return value    0, or -EINVAL when an argument is missing or not allowed. After -EINVAL nothing has been
 *                  changed or recorded. errno is never touched.
 *  Pointers        are borrowed. The library keeps none: what a struct points to must live until the last
 *                  blkin_record() that uses the struct has returned.
 *  Threads         any number, with no lock; only a struct that several threads write needs one of yours.
 *  Signals, fork   async-signal-safe; works in forked children with no further call. A child that a signal handler forks
 *                  must not return from the handler into a call of this library that it interrupted, nor a handler leave
 *                  such a call for good (siglongjmp()): what it had begun to record may stand in the way of what follows,
 *                  which is then lost and counted (stalled).
 *  Environment     is read when the library is loaded, and by a blkin_init() that comes before the first record; no other
 *                  call looks at it, so that any thread may change it at any time but then. A variable that is gone by
 *                  that blkin_init() counts as it was when the library was loaded; one that is empty, as not set.
 *  Texts           are cut at 4 KiB, which is counted. The collector shows names of spans and services in lower case, as
 *                  Zipkin does, and of two values with one key in a span the later.
 *  Blocking        never. A record that finds no room is dropped and counted, by cause.
 *  Switched off    what `blkin set` or BLKIN_OFF has switched off is not recorded; the calls return 0.
 *  Sampling        trace_id 0 means "not sampled": recording on it does nothing and returns 0, children
 *                  inherit the 0, and so does whoever gets the ids over a network.
 */
#ifndef BLKIN_ZIPKIN_C_H
#define BLKIN_ZIPKIN_C_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <asm/byteorder.h>

/* What is called often is called through the global offset table at once, where the compiler can: one jump less. */
#if defined(__x86_64__) && defined(__has_attribute)
#if __has_attribute(noplt)
#define BLKIN_NOPLT __attribute__((noplt))
#endif
#endif
#ifndef BLKIN_NOPLT
#define BLKIN_NOPLT
#endif

/*
 * A function that has no code of its own in the program: it is inlined, or the library's of the same name is called. Nor an
 * address, which -finstrument-functions would ask for.
 */
#if defined(__has_attribute)
#if __has_attribute(gnu_inline) && __has_attribute(always_inline)
#define BLKIN_HAS_GNU_INLINE
#define BLKIN_INLINE extern __inline__ __attribute__((gnu_inline, always_inline, no_instrument_function))
#endif
#endif
#ifndef BLKIN_INLINE
#define BLKIN_INLINE static __inline__
#endif

/* A pointer as one of another type, written so that compilers which warn of the other language's casts do not. */
#ifdef __cplusplus
#define BLKIN_POINTER(type, pointer) static_cast<type>(static_cast<const volatile void *>(pointer))
#else
#define BLKIN_POINTER(type, pointer) ((type)(const volatile void *)(pointer))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The structs are those of the library, also in a program whose own are packed. */
#pragma pack(push, 8)

/*
 * The core annotations of Zipkin and Dapper, to be used as the event of a timestamp annotation:
 * "cs" "cr" "ss" "sr" "ws" "wr", and "csf" "crf" "ssf" "srf" for the fragments of a long message.
 */
extern const char *const CLIENT_SEND;
extern const char *const CLIENT_RECV;
extern const char *const SERVER_SEND;
extern const char *const SERVER_RECV;
extern const char *const WIRE_SEND;
extern const char *const WIRE_RECV;
extern const char *const CLIENT_SEND_FRAGMENT;
extern const char *const CLIENT_RECV_FRAGMENT;
extern const char *const SERVER_SEND_FRAGMENT;
extern const char *const SERVER_RECV_FRAGMENT;

/*
 * Who is speaking: a service and its address.
 *
 * ip    IPv4 or IPv6 as text; NULL or "": no address. Names of hosts are not looked up: they are shown as no address.
 * port  host byte order, 0: none. Its low 16 bits count, so that a struct that was filled through an
 *       int16_t, an int or a uint16_t means the same port; 40000 reads back as 40000.
 * name  the service; needed when something is recorded.
 */
struct blkin_endpoint {
	const char *ip;
	int port;
	const char *name;
};

/*
 * The ids that travel with a request. Each is positive (63 bits); trace_id 0: not sampled; parent_span_id 0:
 * a root. A struct of three int64_t in this order may be cast to it.
 */
struct blkin_trace_info {
	int64_t trace_id;
	int64_t span_id;
	int64_t parent_span_id;
};

/* The same ids for the wire: 24 bytes, big-endian. */
struct blkin_trace_info_packed {
	__be64 trace_id;
	__be64 span_id;
	__be64 parent_span_id;
} __attribute__((packed));

/*
 * A span: what is done (name), its ids, and where (endpoint, may be NULL when each annotation brings its own).
 * Fields may be read and written directly; zeros are a valid "not sampled" span.
 */
struct blkin_trace {
	const char *name;
	struct blkin_trace_info info;
	__extension__ union {
		const struct blkin_endpoint *endpoint;
		struct blkin_endpoint *trace_endpoint;
	};
};

typedef enum {
	ANNOT_STRING = 0, /* key and val_str */
	ANNOT_INTEGER,    /* key and val_int */
	ANNOT_TIMESTAMP   /* an event, named by val_str; its time is taken by blkin_record() */
} blkin_annotation_type;

/* One thing said about a span. endpoint NULL: the span's own. */
struct blkin_annotation {
	blkin_annotation_type type;
	const char *key;
	__extension__ union {
		const char *val_str;
		int64_t val_int;
		char *val;
	};
	__extension__ union {
		const struct blkin_endpoint *endpoint;
		struct blkin_endpoint *annotation_endpoint;
	};
};

/*
 * blkin_init - get ready early
 *
 * Creates the memory that annotations go to and offers it to the node's daemon, so that the first record
 * need not. Optional: the first record does the same. May be called any number of times, from any thread. One that forks for
 * each connection should call it before: children begin as `blkin set` has set their parent, if that was ready. One that
 * pins all of its threads, the first one too, to a CPU each should call it before: there are as many rings as the CPUs
 * that the calling thread and the first one may run on, and at least 15. Where the memory could not be made, as
 * without a free descriptor, each further call tries again; nothing else does, but for a forked child.
 * The program's own state (srand(), signals, descriptors 0-2, environment) is left alone.
 *
 * Returns 0, always: a program runs the same whether or not it can be traced. What is lost because it could
 * not is counted, and `blkin doctor` names the reason.
 */
int blkin_init(void);

/*
 * blkin_init_new_trace - start a trace: a root span with new ids
 *
 * Sets every field of *new_trace. span_id equals trace_id, parent_span_id is 0. With RATE=N (or BLKIN_RATE)
 * in the environment one in N of a thread's or CPU's roots is sampled; the ids of the others are 0.
 * name and endpoint may be NULL here and be set later.
 *
 * Returns 0; -EINVAL if new_trace is NULL.
 */
int blkin_init_new_trace(struct blkin_trace *new_trace, const char *name,
			 const struct blkin_endpoint *endpoint);

/*
 * blkin_init_trace_info - only the ids of a new root
 *
 * As blkin_init_new_trace() does, sampling included. Does nothing if trace_info is NULL.
 */
void blkin_init_trace_info(struct blkin_trace_info *trace_info);

/*
 * blkin_init_child - a child span of a span of this process
 *
 * *child gets the parent's trace_id, a new span_id, and the parent's span_id as its parent_span_id. endpoint
 * NULL: the parent's. child and parent may be the same struct. child_name may be NULL here and be set later.
 *
 * Returns 0; -EINVAL if child or parent is NULL, or if neither endpoint nor the parent has an endpoint.
 */
int blkin_init_child(struct blkin_trace *child, const struct blkin_trace *parent,
		     const struct blkin_endpoint *endpoint, const char *child_name);

/*
 * blkin_init_child_info - a child span of a span known by its ids, such as the sender of a message
 *
 * As blkin_init_child(), but the endpoint is needed. info may be &child->info.
 *
 * Returns 0; -EINVAL if child, info or endpoint is NULL.
 */
int blkin_init_child_info(struct blkin_trace *child, const struct blkin_trace_info *info,
			  const struct blkin_endpoint *endpoint, const char *child_name);

/*
 * blkin_init_endpoint - fill in an endpoint
 *
 * ip NULL: no address. The text of ip is looked at when it is recorded; one that is no address is recorded as
 * none. A port above 32767 arrives as the same 16 bits and is stored as the port that was meant; of a literal one
 * clang warns, not of (int16_t)40000.
 *
 * Returns 0; -EINVAL if endpoint is NULL.
 */
int blkin_init_endpoint(struct blkin_endpoint *endpoint, const char *ip, int16_t port, const char *name);

/*
 * blkin_init_string_annotation - "key = val"
 *
 * Returns 0; -EINVAL if annotation, key or val is NULL.
 */
int blkin_init_string_annotation(struct blkin_annotation *annotation, const char *key, const char *val,
				 const struct blkin_endpoint *endpoint);

/*
 * blkin_init_integer_annotation - "key = val", val a number
 *
 * Returns 0; -EINVAL if annotation or key is NULL.
 */
int blkin_init_integer_annotation(struct blkin_annotation *annotation, const char *key, int64_t val,
				  const struct blkin_endpoint *endpoint);

/*
 * blkin_init_timestamp_annotation - "event happened"
 *
 * The event is kept in val_str, key becomes NULL. The time is not taken here but by blkin_record(), so an
 * annotation may be prepared once and recorded often.
 *
 * Returns 0; -EINVAL if annotation or event is NULL.
 */
int blkin_init_timestamp_annotation(struct blkin_annotation *annotation, const char *event,
				    const struct blkin_endpoint *endpoint);

/*
 * blkin_record - record an annotation on a span
 *
 * Takes the time (timestamp annotations), copies everything the annotation needs and returns; neither struct
 * is changed. Uses the annotation's endpoint, or else the span's.
 * In the steady state it makes no system call, takes no lock and allocates nothing.
 *
 * Returns 0 when the annotation was recorded, when it was dropped and counted because there was no room, or
 * when the span is not sampled. -EINVAL if trace or annotation is NULL, or, on a sampled span: there is no
 * span name, no endpoint, no endpoint name, no key (string, integer), no value (string), no event
 * (timestamp), or the type is unknown.
 */
BLKIN_NOPLT
int blkin_record(const struct blkin_trace *trace, const struct blkin_annotation *annotation);

/*
 * blkin_get_trace_info - copy the ids of a span to *info
 *
 * Returns 0; -EINVAL if trace or info is NULL.
 */
int blkin_get_trace_info(const struct blkin_trace *trace, struct blkin_trace_info *info);

/*
 * blkin_set_trace_info - give a span the ids in *info
 *
 * Returns 0; -EINVAL if trace or info is NULL.
 */
int blkin_set_trace_info(struct blkin_trace *trace, const struct blkin_trace_info *info);

/*
 * blkin_set_trace_properties - give a span its ids, name and endpoint: take part in a span begun elsewhere
 *
 * Returns 0; -EINVAL if any argument is NULL.
 */
int blkin_set_trace_properties(struct blkin_trace *trace, const struct blkin_trace_info *info,
			       const char *name, const struct blkin_endpoint *endpoint);

/*
 * blkin_pack_trace_info - ids to 24 bytes in network order
 *
 * Returns 0; -EINVAL if info or pinfo is NULL.
 */
int blkin_pack_trace_info(const struct blkin_trace_info *info, struct blkin_trace_info_packed *pinfo);

/*
 * blkin_unpack_trace_info - 24 bytes in network order to ids
 *
 * pinfo may point anywhere into a received message; it needs no alignment.
 *
 * Returns 0; -EINVAL if pinfo or info is NULL.
 */
int blkin_unpack_trace_info(const struct blkin_trace_info_packed *pinfo, struct blkin_trace_info *info);

/*
 * Severity, as syslog has it. blkin_record() and the macros without a level record at BLKIN_LEVEL_WARNING.
 */
enum blkin_level {
	BLKIN_LEVEL_EMERG = 0,
	BLKIN_LEVEL_ALERT,
	BLKIN_LEVEL_CRIT,
	BLKIN_LEVEL_ERR,
	BLKIN_LEVEL_WARNING,
	BLKIN_LEVEL_NOTICE,
	BLKIN_LEVEL_INFO,
	BLKIN_LEVEL_DEBUG
};

/* Where the library keeps what is switched off. Not to be touched but by blkin_is_on(). */
struct blkin_gate_words {
	int64_t offset;
	uint64_t blocked;
};

/*
 * blkin_level_is_on - blkin_is_on() as a function of the library
 *
 * For compilers and machines whose blkin_is_on() cannot look at the library's words, and for who finds it by dlsym().
 *
 * Returns 1 if annotations of this level are recorded now, 0 if not. Of level the low 3 bits count. Async-signal-safe.
 */
int blkin_level_is_on(unsigned int level);

/* What blkin_is_on() does, for the library's own inline functions, too. */
BLKIN_INLINE int blkin_gate_is_open(unsigned int level)
{
#if defined(__x86_64__) && defined(__LP64__) && !defined(__TINYC__)
	const struct blkin_gate_words *gate;
	const volatile int64_t *offset;
	const volatile char *own;

	/*
	 * Through the global offset table in every code model: never a copy of the words in the program itself. tcc's
	 * assembler knows no such table. In both dialects: the program may be compiled with -masm=intel.
	 */
	__asm__("{movq blkin_gate@GOTPCREL(%%rip), %0|mov %0, qword ptr [rip + blkin_gate@GOTPCREL]}" : "=r"(gate));
	offset = &gate->offset;
	own = BLKIN_POINTER(const volatile char *, &gate->blocked);
	return !(*BLKIN_POINTER(const volatile uint64_t *, own + *offset) >> (level & 7) & 1);
#else
	return blkin_level_is_on(level);
#endif
}

/*
 * blkin_is_on - whether annotations of this level are recorded now
 *
 * Changes while the program runs (`blkin set`), at any time. Costs two loads; worth asking before costly values are
 * made. The macros below ask by themselves.
 *
 * Returns 1 or 0.
 */
static __inline__ int blkin_is_on(unsigned int level)
{
	return blkin_gate_is_open(level);
}

/*
 * A name that is looked up once: an event or a key that the program declares. Recording it compares no text.
 *
 * text  has to stay as it is for as long as the name is used
 * id    belongs to the library; 0 at first
 *
 * BLKIN_NAME("text") initialises one. Any thread may use it, and forked children.
 */
struct blkin_name {
	const char *text;
	uint32_t id;
};

#define BLKIN_NAME(name_text) { name_text, 0 }

/*
 * A span whose name and endpoint are looked up once. trace can be used wherever a struct blkin_trace is wanted, and
 * what its name and endpoint point to has to stay for as long as the span is used; to change them, make the span
 * anew. names belongs to the library.
 */
struct blkin_span {
	struct blkin_trace trace;
	uint64_t names;
};

/*
 * blkin_span_root, blkin_span_child - begin a span for the macros BLKIN_EVENT, BLKIN_INTEGER and BLKIN_STRING
 *
 * A new trace, as blkin_init_new_trace() starts one, sampling included; and a child span of the one that has the ids *parent,
 * in this process (&span.trace.info) or another, as blkin_init_child_info() makes it. Either also does what blkin_span_of()
 * does, in the one call. parent may be &span->trace.info.
 *
 * Returns 0; -EINVAL if an argument or the name of the endpoint is NULL, and then *span is as it was.
 */
int blkin_span_root(struct blkin_span *span, const char *name, const struct blkin_endpoint *endpoint);
int blkin_span_child(struct blkin_span *span, const struct blkin_trace_info *parent, const char *name,
		     const struct blkin_endpoint *endpoint);

/*
 * blkin_span_of - make a span that there is already ready for these macros
 *
 * Copies *trace and looks its name and endpoint up; does the latter only if it is sampled.
 *
 * Returns 0; -EINVAL if span or trace is NULL, or the trace has no name, no endpoint, or no name of an endpoint.
 */
int blkin_span_of(struct blkin_span *span, const struct blkin_trace *trace);

/*
 * blkin_span_event, blkin_span_integer, blkin_span_string - record on a span, with a declared name
 *
 * What the macros below call when the span is sampled and the level is on: these functions ask neither. No argument may
 * be NULL, but for val, which then records nothing.
 */
BLKIN_NOPLT
void blkin_span_event(const struct blkin_span *span, struct blkin_name *event, unsigned int level);
BLKIN_NOPLT
void blkin_span_integer(const struct blkin_span *span, struct blkin_name *key, int64_t val,
			unsigned int level);
BLKIN_NOPLT
void blkin_span_string(const struct blkin_span *span, struct blkin_name *key, const char *val,
		       unsigned int level);

/* The bodies of the macros below: the tests that cost nothing to speak of are made where they are written. */
static __inline__ void blkin_macro_span_event(const struct blkin_span *span, struct blkin_name *event,
					  unsigned int level)
{
	if (span->trace.info.trace_id != 0 && blkin_is_on(level))
		blkin_span_event(span, event, level);
}

static __inline__ void blkin_macro_span_integer(const struct blkin_span *span, struct blkin_name *key, int64_t val,
					    unsigned int level)
{
	if (span->trace.info.trace_id != 0 && blkin_is_on(level))
		blkin_span_integer(span, key, val, level);
}

static __inline__ void blkin_macro_span_string(const struct blkin_span *span, struct blkin_name *key,
					   const char *val, unsigned int level)
{
	if (span->trace.info.trace_id != 0 && blkin_is_on(level))
		blkin_span_string(span, key, val, level);
}

/*
 * BLKIN_EVENT, BLKIN_INTEGER, BLKIN_STRING - record on a struct blkin_span; event and key are string literals
 *
 * SERVER_RECV and its like are none: write "sr", or BLKIN_TIMESTAMP(&span.trace, NULL, SERVER_RECV). The _AT forms take a
 * level first. Each is one statement and takes a `;`. Every argument is evaluated once, sampled or not.
 */
#define BLKIN_EVENT_AT(level, span, event)                                                    \
	do {                                                                                  \
		static struct blkin_name blkin_literal = BLKIN_NAME("" event "");             \
		blkin_macro_span_event(span, &blkin_literal, level);                          \
	} while (0)

#define BLKIN_INTEGER_AT(level, span, key, val)                                               \
	do {                                                                                  \
		static struct blkin_name blkin_literal = BLKIN_NAME("" key "");               \
		blkin_macro_span_integer(span, &blkin_literal, val, level);                   \
	} while (0)

#define BLKIN_STRING_AT(level, span, key, val)                                                \
	do {                                                                                  \
		static struct blkin_name blkin_literal = BLKIN_NAME("" key "");               \
		blkin_macro_span_string(span, &blkin_literal, val, level);                    \
	} while (0)

#define BLKIN_EVENT(span, event) BLKIN_EVENT_AT(BLKIN_LEVEL_WARNING, span, event)
#define BLKIN_INTEGER(span, key, val) BLKIN_INTEGER_AT(BLKIN_LEVEL_WARNING, span, key, val)
#define BLKIN_STRING(span, key, val) BLKIN_STRING_AT(BLKIN_LEVEL_WARNING, span, key, val)

/*
 * blkin_trace_annotation - blkin_record() of a span that is sampled, while warnings are on
 *
 * What blkin_record() and the macros below call then: it asks neither. No argument may be NULL.
 *
 * Returns what blkin_record() does.
 */
BLKIN_NOPLT
int blkin_trace_annotation(const struct blkin_trace *trace, const struct blkin_annotation *annotation);

#ifdef BLKIN_HAS_GNU_INLINE
/*
 * Asks whether anything is to be recorded before it calls the library. The function itself, which has its address and takes
 * what is not inlined, is the library's.
 */
BLKIN_INLINE int blkin_record(const struct blkin_trace *trace, const struct blkin_annotation *annotation)
{
	if (!trace || !annotation)
		return -EINVAL;
	if (trace->info.trace_id == 0 || !blkin_gate_is_open(BLKIN_LEVEL_WARNING))
		return 0;
	return blkin_trace_annotation(trace, annotation);
}
#endif

/*
 * blkin_trace_event, blkin_trace_integer - blkin_record() of an annotation that is not put together first
 *
 * What the macros below call when the span is sampled and the level is on: these functions ask neither. trace, event and
 * key must not be NULL; endpoint may be: the span's own.
 */
BLKIN_NOPLT
void blkin_trace_event(const struct blkin_trace *trace, const struct blkin_endpoint *endpoint, const char *event);
BLKIN_NOPLT
void blkin_trace_integer(const struct blkin_trace *trace, const struct blkin_endpoint *endpoint, const char *key,
			 int64_t val);

/*
 * The bodies of the macros below. A span that is not sampled, or a level that is switched off, costs a branch or two
 * here; where blkin_init_..._annotation() would return -EINVAL nothing is recorded.
 */
static __inline__ int blkin_macro_wants(const struct blkin_trace *trace)
{
	return trace && trace->info.trace_id != 0 && blkin_is_on(BLKIN_LEVEL_WARNING);
}

static __inline__ void blkin_macro_timestamp(const struct blkin_trace *trace, const struct blkin_endpoint *endp,
					 const char *event)
{
	if (blkin_macro_wants(trace) && event)
		blkin_trace_event(trace, endp, event);
}

static __inline__ void blkin_macro_string(const struct blkin_trace *trace, const struct blkin_endpoint *endp,
				      const char *key, const char *val)
{
	struct blkin_annotation annot;

	if (!blkin_macro_wants(trace) || !key || !val)
		return;
	annot.type = ANNOT_STRING;
	annot.key = key;
	annot.val_str = val;
	annot.endpoint = endp;
	(void)blkin_trace_annotation(trace, &annot);
}

static __inline__ void blkin_macro_integer(const struct blkin_trace *trace, const struct blkin_endpoint *endp,
				       const char *key, int64_t val)
{
	if (blkin_macro_wants(trace) && key)
		blkin_trace_integer(trace, endp, key, val);
}

/*
 * BLKIN_TIMESTAMP, BLKIN_KEYVAL_STRING, BLKIN_KEYVAL_INTEGER, BLKIN_KEYVAL (as _STRING) - make an annotation
 * and record it
 *
 * endp NULL: the span's own endpoint. Every argument is evaluated once, sampled or not. What blkin_record()
 * would return is dropped. Each is a whole statement and takes a `;` or none, as it always did; between
 * if and else put braces around it.
 */
#define BLKIN_TIMESTAMP(trace, endp, event)                  \
	do {                                                 \
		blkin_macro_timestamp(trace, endp, event);   \
	} while (0);

#define BLKIN_KEYVAL_STRING(trace, endp, key, val)           \
	do {                                                 \
		blkin_macro_string(trace, endp, key, val);   \
	} while (0);

#define BLKIN_KEYVAL_INTEGER(trace, endp, key, val)          \
	do {                                                 \
		blkin_macro_integer(trace, endp, key, val);  \
	} while (0);

#define BLKIN_KEYVAL(trace, endp, key, val) BLKIN_KEYVAL_STRING(trace, endp, key, val)

#pragma pack(pop)

/* gcc's -fpack-struct packs them all the same. */
typedef char blkin_structs_must_not_be_packed[sizeof(struct blkin_annotation) == 4 * sizeof(void *) ? 1 : -1];

#undef BLKIN_POINTER
#undef BLKIN_INLINE
#undef BLKIN_HAS_GNU_INLINE

#ifdef __cplusplus
}
#endif

#endif /* BLKIN_ZIPKIN_C_H */
