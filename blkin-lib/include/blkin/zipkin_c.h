/*
 * zipkin_c.h - tracing for C programs: traces, spans and their annotations.
 *
 * One header for every BlkKin dialect: it accepts the fields and names of the original branch (trace_endpoint,
 * annotation_endpoint, val, BLKIN_KEYVAL, int ports, non-const arguments) and those of the later branches, with the
 * same meaning. Works from C89 and from C++11 on; link with -lblkin (see blkin.pc, or find_package(Blkin)).
 *
 * Unless a function says otherwise, the following holds for all of them:
 *
 *  Return value    0, or -EINVAL when an argument is missing or not allowed. errno is never touched. The value may be
 *                  ignored: a call that returns -EINVAL records nothing, and sets the struct that it should have filled
 *                  in to all zeros. Such a span is not sampled, and recording on it does nothing; blkin_record() does
 *                  not record such an annotation. Exception: bytes of this struct that also belong to the struct from
 *                  which it was to be made, going by the two addresses, stay as they were, so that the parent is not
 *                  lost. If only the ids of a span are kept so, recording on it does nothing until it has a name.
 *  Pointers        are borrowed. The library keeps none: what a struct points to must stay valid until the last
 *                  blkin_record() that uses the struct has returned.
 *  Threads         Any number of threads may call at once, without a lock. A struct that one thread writes while
 *                  others use it must be protected by the program.
 *  Signals, fork   All calls are async-signal-safe, and work in forked children without any preparation. Two things are
 *                  not allowed in a signal handler that interrupted a call of this library: to fork a child that
 *                  returns into this call, and to leave the call by siglongjmp(). The unfinished call may stand in the way
 *                  of later records, which are then lost and counted (stalled, starting).
 *  Environment     is read when the library is loaded, and by a blkin_init() that comes before the first trace or
 *                  record, or after a failed start. No other call reads it, so any thread may change it at other
 *                  times. A variable that was removed before such a blkin_init() keeps the value that it had when the
 *                  library was loaded. An empty variable counts as not set.
 *  Texts           longer than 4 KiB are cut, and counted. The collector shows names of spans and services in lower
 *                  case, as Zipkin does. If a span has two values with the same key, it shows the later one.
 *  Blocking        No call blocks. A record for which there is no room is dropped, and counted by cause.
 *  Switched off    Annotations that `blkin set` or BLKIN_OFF has switched off are not recorded; the calls return 0.
 *  Sampling        trace_id 0 means "not sampled". Recording on such a span does nothing and returns 0. Its children
 *                  inherit the 0, also in programs that receive the ids over a network.
 */
#ifndef BLKIN_ZIPKIN_C_H
#define BLKIN_ZIPKIN_C_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <asm/byteorder.h>

/* Frequent calls go through the global offset table directly where the compiler can do so, which saves a jump. */
#if defined(__x86_64__) && defined(__has_attribute)
#if __has_attribute(noplt)
#define BLKIN_NOPLT __attribute__((noplt))
#endif
#endif
#ifndef BLKIN_NOPLT
#define BLKIN_NOPLT
#endif

/*
 * A function without code of its own in the program: it is either inlined, or the library's function of the same name is
 * called. Not instrumented, because -finstrument-functions would need its address.
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

/* Casts a pointer, in C or C++ as the program is compiled: compilers warn about the other language's casts. */
#ifdef __cplusplus
#define BLKIN_POINTER(type, pointer) static_cast<type>(static_cast<const volatile void *>(pointer))
#else
#define BLKIN_POINTER(type, pointer) ((type)(const volatile void *)(pointer))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The structs keep the library's layout, also in a program that packs its own structs. */
#pragma pack(push, 8)

/*
 * The core annotations of Zipkin and Dapper, for use as the event of a timestamp annotation:
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
 * The service that records, and its address.
 *
 * ip    IPv4 or IPv6 address as text; NULL or "": no address. Host names are not looked up: they count as no address.
 * port  host byte order, 0: none. Only the low 16 bits count, so an int16_t, an int and a uint16_t that
 *       were given the same port mean the same port. 40000 reads back as 40000.
 * name  the service's name; required when something is recorded.
 */
struct blkin_endpoint {
	const char *ip;
	int port;
	const char *name;
};

/*
 * The ids that travel with a request. Each is positive (63 bits). trace_id 0: not sampled; parent_span_id 0:
 * a root. A program may cast its own struct of three int64_t in this order to this type.
 */
struct blkin_trace_info {
	int64_t trace_id;
	int64_t span_id;
	int64_t parent_span_id;
};

/* The same ids in network order: 24 bytes, big-endian. */
struct blkin_trace_info_packed {
	__be64 trace_id;
	__be64 span_id;
	__be64 parent_span_id;
} __attribute__((packed));

/*
 * A span: the operation (name), its ids, and the endpoint, which may be NULL if each annotation has its own.
 * Fields may be read and written directly; all zeros are a valid "not sampled" span.
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

/* An annotation of a span. endpoint NULL: the span's endpoint. */
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
 * blkin_init - set up tracing early
 *
 * Creates the shared memory for annotations and offers it to the node's consumerd. Optional: otherwise the first
 * trace or record does this. May be called any number of times, from any thread.
 *
 * Call it before forking in a program that forks for each connection: a child then starts with what `blkin set` has set for
 * its parent. Call it before pinning in a program that pins all its threads, the first one included, to one CPU each: the
 * number of rings, by default at least 15, follows from the CPUs that the calling thread and the first thread may run on.
 *
 * If the memory cannot be created, for example because no descriptor is free, each further blkin_init() tries again.
 * Apart from that only a forked child tries again. The program's own state (srand(), signals, descriptors 0-2,
 * environment) is not changed.
 *
 * Always returns 0: a program runs the same whether or not it can be traced. If it cannot, it says why on its standard
 * error, once, and `blkin doctor` names it. What it records until then is counted as lost if a later blkin_init()
 * succeeds; otherwise it says at its end how many annotations that were.
 */
int blkin_init(void);

/* The answers of blkin_status(). */
enum blkin_state {
	BLKIN_STATUS_NOT_STARTED = 0, /* nothing was traced or recorded yet, or the first such call has not returned */
	BLKIN_STATUS_TRACING,         /* annotations are recorded; consumerd reads them once it is there */
	BLKIN_STATUS_OFF,             /* BLKIN_OFF is set, or `blkin set --off` has switched off every level */
	BLKIN_STATUS_WITHOUT          /* no shared memory could be created: annotations are counted as lost */
};

/*
 * blkin_status - whether this process is traced now
 *
 * For a program's own log or health page. Starts nothing and makes no system call: call blkin_init() before it to learn
 * whether tracing can work here. A forked child has not started until it first traces or records. Whether one level is on is
 * what blkin_is_on() returns, and whether consumerd reads, what `blkin doctor` says.
 *
 * Returns an enum blkin_state; never fails.
 */
int blkin_status(void);

/*
 * blkin_init_new_trace - start a trace: a root span with new ids
 *
 * Sets every field of *new_trace: span_id equals trace_id, and parent_span_id is 0. With BLKIN_RATE=N or RATE=N in
 * the environment, or a rate set by `blkin set`, one root in N is sampled; the ids of the others are 0. Where possible,
 * roots are counted separately on each CPU, or for each thread that runs at the same time, not over the whole process.
 * name and endpoint may be NULL and be set later.
 *
 * Returns 0; -EINVAL if new_trace is NULL.
 */
int blkin_init_new_trace(struct blkin_trace *new_trace, const char *name,
			 const struct blkin_endpoint *endpoint);

/*
 * blkin_init_trace_info - only the ids of a new root
 *
 * Draws the ids as blkin_init_new_trace() does, sampling included. Does nothing if trace_info is NULL.
 */
void blkin_init_trace_info(struct blkin_trace_info *trace_info);

/*
 * blkin_init_child - a child span of a span of this process
 *
 * *child gets the parent's trace_id, a new span_id, and the parent's span_id as its parent_span_id; all three are 0 if
 * the parent is not sampled. endpoint NULL: the parent's endpoint. child and parent may be the same struct.
 * child_name may be NULL and be set later.
 *
 * Returns 0; -EINVAL if child or parent is NULL, or if neither endpoint nor the parent has an endpoint. *child is then
 * all zeros, or unchanged if child and parent are the same struct.
 */
int blkin_init_child(struct blkin_trace *child, const struct blkin_trace *parent,
		     const struct blkin_endpoint *endpoint, const char *child_name);

/*
 * blkin_init_child_info - a child span of a span of which only the ids are known, such as that of a message's sender
 *
 * As blkin_init_child(), but the endpoint is required. info may be &child->info.
 *
 * Returns 0; -EINVAL if child, info or endpoint is NULL. *child is then all zeros, but for *info
 * if info is &child->info.
 */
int blkin_init_child_info(struct blkin_trace *child, const struct blkin_trace_info *info,
			  const struct blkin_endpoint *endpoint, const char *child_name);

/*
 * blkin_init_endpoint - fill in an endpoint
 *
 * ip NULL: no address. ip is parsed only when something is recorded; a text that is not an address is recorded as no
 * address. A port above 32767 is passed as the same 16 bits and stored as the intended port; clang warns about such a
 * port if it is a literal, but not about (int16_t)40000.
 *
 * Returns 0; -EINVAL if endpoint is NULL.
 */
int blkin_init_endpoint(struct blkin_endpoint *endpoint, const char *ip, int16_t port, const char *name);

/*
 * blkin_init_string_annotation - "key = val"
 *
 * Returns 0; -EINVAL if annotation, key or val is NULL. As with the two functions below, *annotation is then
 * all zeros, and blkin_record() refuses it.
 */
int blkin_init_string_annotation(struct blkin_annotation *annotation, const char *key, const char *val,
				 const struct blkin_endpoint *endpoint);

/*
 * blkin_init_integer_annotation - "key = val", where val is an integer
 *
 * Returns 0; -EINVAL if annotation or key is NULL.
 */
int blkin_init_integer_annotation(struct blkin_annotation *annotation, const char *key, int64_t val,
				  const struct blkin_endpoint *endpoint);

/*
 * blkin_init_timestamp_annotation - "event happened"
 *
 * Stores event in val_str, and sets key to NULL. blkin_record() takes the time, not this call, so an
 * annotation may be prepared once and recorded often.
 *
 * Returns 0; -EINVAL if annotation or event is NULL.
 */
int blkin_init_timestamp_annotation(struct blkin_annotation *annotation, const char *event,
				    const struct blkin_endpoint *endpoint);

/*
 * blkin_record - record an annotation on a span
 *
 * Takes the time (timestamp annotations), copies everything that the annotation needs and returns; neither struct
 * is changed. Uses the annotation's endpoint, or the span's if that is NULL.
 * In the steady state it makes no system call, takes no lock and allocates nothing.
 *
 * Returns 0 if the annotation was recorded, if it was dropped and counted, or if the span is not sampled or
 * level BLKIN_LEVEL_WARNING is switched off. -EINVAL if trace or annotation is NULL. On a sampled span that is not
 * switched off, also -EINVAL if there is no span name, no endpoint, no endpoint name, no key (string, integer),
 * no value (string) or no event (timestamp), or if the type is unknown.
 */
BLKIN_NOPLT
int blkin_record(const struct blkin_trace *trace, const struct blkin_annotation *annotation);

/*
 * blkin_get_trace_info - copy the ids of a span to *info
 *
 * Returns 0; -EINVAL if trace or info is NULL. *info is then all zeros.
 */
int blkin_get_trace_info(const struct blkin_trace *trace, struct blkin_trace_info *info);

/*
 * blkin_set_trace_info - set a span's ids to those in *info
 *
 * Returns 0; -EINVAL, with *trace unchanged, if trace or info is NULL.
 */
int blkin_set_trace_info(struct blkin_trace *trace, const struct blkin_trace_info *info);

/*
 * blkin_set_trace_properties - set a span's ids, name and endpoint, to join a span that was begun elsewhere
 *
 * Returns 0; -EINVAL if any argument is NULL. *trace is then all zeros, but for *info if info is &trace->info.
 */
int blkin_set_trace_properties(struct blkin_trace *trace, const struct blkin_trace_info *info,
			       const char *name, const struct blkin_endpoint *endpoint);

/*
 * blkin_pack_trace_info - ids to 24 bytes in network order
 *
 * Returns 0; -EINVAL if info or pinfo is NULL. *pinfo is then all zeros.
 */
int blkin_pack_trace_info(const struct blkin_trace_info *info, struct blkin_trace_info_packed *pinfo);

/*
 * blkin_unpack_trace_info - 24 bytes in network order to ids
 *
 * pinfo may point anywhere into a received message, at any alignment. The ids are not checked.
 *
 * Returns 0; -EINVAL if pinfo or info is NULL. *info is then all zeros.
 */
int blkin_unpack_trace_info(const struct blkin_trace_info_packed *pinfo, struct blkin_trace_info *info);

/*
 * Severity, with the levels of syslog. blkin_record() and the macros without a level record at BLKIN_LEVEL_WARNING.
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

/* Where the library keeps which levels are switched off. For blkin_is_on() only. */
struct blkin_gate_words {
	int64_t offset;
	uint64_t blocked;
};

/*
 * blkin_level_is_on - blkin_is_on() as a function of the library
 *
 * For compilers and machines on which blkin_is_on() cannot read the library's words, and for programs that look it
 * up by dlsym().
 *
 * Returns 1 if annotations of this level are recorded now, 0 if not. Only the low 3 bits of level count.
 */
int blkin_level_is_on(unsigned int level);

/* The body of blkin_is_on(), which this header's other inline functions use too. */
BLKIN_INLINE int blkin_gate_is_open(unsigned int level)
{
#if defined(__x86_64__) && defined(__LP64__) && !defined(__TINYC__)
	const struct blkin_gate_words *gate;
	const volatile int64_t *offset;
	const volatile char *own;

	/*
	 * Through the global offset table in every code model, so that the program never gets its own copy of the words.
	 * tcc's assembler knows no such table. In both assembler dialects: the program may be compiled with -masm=intel.
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
 * The answer may change at any time while the program runs (`blkin set`). The call costs two loads: use it before
 * computing an expensive value. The macros below check by themselves.
 *
 * Returns 1 or 0. Only the low 3 bits of level count.
 */
static __inline__ int blkin_is_on(unsigned int level)
{
	return blkin_gate_is_open(level);
}

/*
 * An event or key that the program declares, and that the library looks up once. Recording it compares no text.
 *
 * text  must not change for as long as the name is used
 * id    belongs to the library; initially 0
 *
 * BLKIN_NAME("text") initialises one. Any thread may use it, and so may forked children.
 */
struct blkin_name {
	const char *text;
	uint32_t id;
};

#define BLKIN_NAME(name_text) { name_text, 0 }

/*
 * A span whose name and endpoint are looked up once. trace can be used wherever a struct blkin_trace is expected. What
 * its name and endpoint point to must not change for as long as the span is used; to change them, make a new span.
 * names belongs to the library.
 */
struct blkin_span {
	struct blkin_trace trace;
	uint64_t names;
};

/*
 * blkin_span_root, blkin_span_child - begin a span for the macros BLKIN_EVENT, BLKIN_INTEGER and BLKIN_STRING
 *
 * blkin_span_root() starts a new trace as blkin_init_new_trace() does, sampling included. blkin_span_child() makes a child
 * of the span with the ids *parent, in this process (&span.trace.info) or another, as blkin_init_child_info() does. Both also
 * do the work of blkin_span_of(). parent may be &span->trace.info.
 *
 * Returns 0; -EINVAL if an argument or the endpoint's name is NULL. *span is then all zeros, but for *parent if parent
 * is &span->trace.info; the macros record nothing on it.
 */
int blkin_span_root(struct blkin_span *span, const char *name, const struct blkin_endpoint *endpoint);
int blkin_span_child(struct blkin_span *span, const struct blkin_trace_info *parent, const char *name,
		     const struct blkin_endpoint *endpoint);

/*
 * blkin_span_of - prepare an existing span for these macros
 *
 * Copies *trace to span->trace and, if it is sampled, looks up its name and endpoint.
 *
 * Returns 0; -EINVAL if span or trace is NULL, or if the trace has no name, no endpoint or no endpoint name. *span is then
 * all zeros, but for *trace if trace is &span->trace; the macros record nothing on it.
 */
int blkin_span_of(struct blkin_span *span, const struct blkin_trace *trace);

/*
 * blkin_span_event, blkin_span_integer, blkin_span_string - record on a span, with a declared name
 *
 * The macros below call these functions if the span is sampled and the level is on; the functions check neither. No
 * argument may be NULL, except that blkin_span_string() records nothing if val is NULL.
 */
BLKIN_NOPLT
void blkin_span_event(const struct blkin_span *span, struct blkin_name *event, unsigned int level);
BLKIN_NOPLT
void blkin_span_integer(const struct blkin_span *span, struct blkin_name *key, int64_t val,
			unsigned int level);
BLKIN_NOPLT
void blkin_span_string(const struct blkin_span *span, struct blkin_name *key, const char *val,
		       unsigned int level);

/* The bodies of the macros below: the cheap checks are made in the program, without a call. */
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
 * SERVER_RECV and the other constants are not literals: write "sr", or BLKIN_TIMESTAMP(&span.trace, NULL, SERVER_RECV).
 * The _AT forms take a level as first argument. Each macro is one statement and takes a `;`. Every argument is evaluated
 * once, sampled or not.
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
 * blkin_trace_annotation - blkin_record() without the checks for sampling and level
 *
 * blkin_record() and the macros below call it if the span is sampled and BLKIN_LEVEL_WARNING is on. No argument may be
 * NULL.
 *
 * Returns what blkin_record() returns for such a span.
 */
BLKIN_NOPLT
int blkin_trace_annotation(const struct blkin_trace *trace, const struct blkin_annotation *annotation);

#ifdef BLKIN_HAS_GNU_INLINE
/*
 * Checks whether anything is to be recorded before it calls the library. Calls that are not inlined, and calls through the
 * function's address, reach the library's function of the same name.
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
 * blkin_trace_event, blkin_trace_integer - record as blkin_record() does, without a struct blkin_annotation
 *
 * The macros below call these functions if the span is sampled and the level is on; the functions check neither. trace,
 * event and key must not be NULL. endpoint NULL: the span's endpoint. Where blkin_record() would return -EINVAL they
 * record nothing.
 */
BLKIN_NOPLT
void blkin_trace_event(const struct blkin_trace *trace, const struct blkin_endpoint *endpoint, const char *event);
BLKIN_NOPLT
void blkin_trace_integer(const struct blkin_trace *trace, const struct blkin_endpoint *endpoint, const char *key,
			 int64_t val);

/*
 * The bodies of the macros below. For a span that is not sampled, or a level that is switched off, they cost a branch or
 * two. Where blkin_init_..._annotation() would return -EINVAL they record nothing.
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
 * endp NULL: the span's endpoint. Every argument is evaluated once, sampled or not. Errors are not reported: where
 * blkin_record() would return -EINVAL nothing is recorded. Each macro is a whole statement, with or without a `;`
 * behind it, as in the original branch; between if and else it needs braces.
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

/* gcc's -fpack-struct packs the structs in spite of the pragma. */
typedef char blkin_structs_must_not_be_packed[sizeof(struct blkin_annotation) == 4 * sizeof(void *) ? 1 : -1];

#undef BLKIN_POINTER
#undef BLKIN_INLINE
#undef BLKIN_HAS_GNU_INLINE

#ifdef __cplusplus
}
#endif

#endif /* BLKIN_ZIPKIN_C_H */
