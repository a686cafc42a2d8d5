/*
 * Checks that every function has exactly the type that programs were written against, and every struct the layout that
 * compiled programs rely on. Compiled as C11 and as C++17; running it only shows that the symbols exist.
 */
#include "zipkin_c.h"
#include "blkin-front.h"

#ifdef __cplusplus
#define ASSERT(condition) static_assert(condition, #condition)
#define ALIGNOF alignof
#else
#define ASSERT(condition) _Static_assert(condition, #condition)
#define ALIGNOF _Alignof
#endif

ASSERT(sizeof(struct blkin_endpoint) == 24);
ASSERT(offsetof(struct blkin_endpoint, ip) == 0);
ASSERT(offsetof(struct blkin_endpoint, port) == 8);
ASSERT(offsetof(struct blkin_endpoint, name) == 16);
ASSERT(sizeof(struct blkin_trace_info) == 24);
ASSERT(offsetof(struct blkin_trace_info, span_id) == 8);
ASSERT(offsetof(struct blkin_trace_info, parent_span_id) == 16);
ASSERT(sizeof(struct blkin_trace_info_packed) == 24);
ASSERT(ALIGNOF(struct blkin_trace_info_packed) == 1);
ASSERT(sizeof(struct blkin_trace) == 40);
ASSERT(offsetof(struct blkin_trace, info) == 8);
ASSERT(offsetof(struct blkin_trace, endpoint) == 32);
ASSERT(offsetof(struct blkin_trace, trace_endpoint) == 32);
ASSERT(sizeof(struct blkin_annotation) == 32);
ASSERT(offsetof(struct blkin_annotation, key) == 8);
ASSERT(offsetof(struct blkin_annotation, val_str) == 16);
ASSERT(offsetof(struct blkin_annotation, val_int) == 16);
ASSERT(offsetof(struct blkin_annotation, val) == 16);
ASSERT(offsetof(struct blkin_annotation, endpoint) == 24);
ASSERT(offsetof(struct blkin_annotation, annotation_endpoint) == 24);
ASSERT(sizeof(struct blkin_name) == 16);
ASSERT(offsetof(struct blkin_name, id) == 8);
ASSERT(sizeof(struct blkin_span) == 48);
ASSERT(offsetof(struct blkin_span, trace) == 0);
ASSERT(offsetof(struct blkin_span, names) == 40);
ASSERT(BLKIN_LEVEL_EMERG == 0);
ASSERT(BLKIN_LEVEL_WARNING == 4);
ASSERT(BLKIN_LEVEL_DEBUG == 7);
ASSERT(BLKIN_STATUS_NOT_STARTED == 0);
ASSERT(BLKIN_STATUS_TRACING == 1);
ASSERT(BLKIN_STATUS_OFF == 2);
ASSERT(BLKIN_STATUS_WITHOUT == 3);
ASSERT(sizeof(blkin_annotation_type) == 4);
ASSERT(ANNOT_STRING == 0);
ASSERT(ANNOT_INTEGER == 1);
ASSERT(ANNOT_TIMESTAMP == 2);

int (*init)(void) = blkin_init;
int (*status)(void) = blkin_status;
int (*init_new_trace)(struct blkin_trace *, const char *, const struct blkin_endpoint *) = blkin_init_new_trace;
void (*init_trace_info)(struct blkin_trace_info *) = blkin_init_trace_info;
int (*init_child)(struct blkin_trace *, const struct blkin_trace *, const struct blkin_endpoint *,
		  const char *) = blkin_init_child;
int (*init_child_info)(struct blkin_trace *, const struct blkin_trace_info *, const struct blkin_endpoint *,
		       const char *) = blkin_init_child_info;
int (*init_endpoint)(struct blkin_endpoint *, const char *, int16_t, const char *) = blkin_init_endpoint;
int (*init_string)(struct blkin_annotation *, const char *, const char *,
		   const struct blkin_endpoint *) = blkin_init_string_annotation;
int (*init_integer)(struct blkin_annotation *, const char *, int64_t,
		    const struct blkin_endpoint *) = blkin_init_integer_annotation;
int (*init_timestamp)(struct blkin_annotation *, const char *,
		      const struct blkin_endpoint *) = blkin_init_timestamp_annotation;
int (*record)(const struct blkin_trace *, const struct blkin_annotation *) = blkin_record;
int (*get_trace_info)(const struct blkin_trace *, struct blkin_trace_info *) = blkin_get_trace_info;
int (*set_trace_info)(struct blkin_trace *, const struct blkin_trace_info *) = blkin_set_trace_info;
int (*set_trace_properties)(struct blkin_trace *, const struct blkin_trace_info *, const char *,
			    const struct blkin_endpoint *) = blkin_set_trace_properties;
int (*pack)(const struct blkin_trace_info *, struct blkin_trace_info_packed *) = blkin_pack_trace_info;
int (*unpack)(const struct blkin_trace_info_packed *, struct blkin_trace_info *) = blkin_unpack_trace_info;
int (*span_root)(struct blkin_span *, const char *, const struct blkin_endpoint *) = blkin_span_root;
int (*span_child)(struct blkin_span *, const struct blkin_trace_info *, const char *,
		  const struct blkin_endpoint *) = blkin_span_child;
int (*span_of)(struct blkin_span *, const struct blkin_trace *) = blkin_span_of;
void (*span_event)(const struct blkin_span *, struct blkin_name *, unsigned int) = blkin_span_event;
void (*span_integer)(const struct blkin_span *, struct blkin_name *, int64_t, unsigned int) = blkin_span_integer;
void (*span_string)(const struct blkin_span *, struct blkin_name *, const char *, unsigned int) = blkin_span_string;
void (*trace_event)(const struct blkin_trace *, const struct blkin_endpoint *, const char *) = blkin_trace_event;
void (*trace_integer)(const struct blkin_trace *, const struct blkin_endpoint *, const char *,
		      int64_t) = blkin_trace_integer;
int (*trace_annotation)(const struct blkin_trace *, const struct blkin_annotation *) = blkin_trace_annotation;
int (*level_is_on)(unsigned int) = blkin_level_is_on;
const char *const *const constants[] = {
	&CLIENT_SEND,          &CLIENT_RECV,          &SERVER_SEND,          &SERVER_RECV,
	&WIRE_SEND,            &WIRE_RECV,            &CLIENT_SEND_FRAGMENT, &CLIENT_RECV_FRAGMENT,
	&SERVER_SEND_FRAGMENT, &SERVER_RECV_FRAGMENT,
};

int main(void)
{
	size_t i;

	for (i = 0; i < sizeof constants / sizeof *constants; i++)
		if (!*constants[i])
			return 1;
	return !(init && status && init_new_trace && init_trace_info && init_child && init_child_info && init_endpoint &&
		 init_string && init_integer && init_timestamp && record && get_trace_info && set_trace_info &&
		 set_trace_properties && pack && unpack && span_of && span_event && span_integer && span_string && trace_event &&
		 trace_integer && trace_annotation &&
		 level_is_on(BLKIN_LEVEL_ERR) == blkin_is_on(BLKIN_LEVEL_ERR));
}
