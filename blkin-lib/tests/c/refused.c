/*
 * Ignores what the calls return: each call that fills in a struct fails, on a struct that was never set, and the program goes on
 * with this struct. Nothing may be recorded then but what the calls at the end of each round record.
 */
#include <errno.h>

#include "expect.h"

static const struct blkin_endpoint here = { "10.0.0.1", 8080, "here" }, nobody = { "10.0.0.1", 8080, NULL };

/* As on a stack: the ids are those of a sampled span, and no address can be read. */
#define UNSET(object) memset(&(object), 0xff, sizeof(object))

#define IS_ZERO(object) is_zero(&(object), sizeof(object))

static void record_on_trace(const struct blkin_trace *trace)
{
	/* The library's function, which the header's inline one replaces otherwise. */
	int (*const volatile library_record)(const struct blkin_trace *, const struct blkin_annotation *) = blkin_record;
	struct blkin_annotation annotation;

	BLKIN_TIMESTAMP(trace, NULL, "never");
	BLKIN_TIMESTAMP(trace, &here, "never");
	BLKIN_KEYVAL_STRING(trace, NULL, "never", "value");
	BLKIN_KEYVAL_STRING(trace, &here, "never", "value");
	BLKIN_KEYVAL_INTEGER(trace, NULL, "never", 7);
	BLKIN_KEYVAL_INTEGER(trace, &here, "never", 7);
	(void)blkin_init_string_annotation(&annotation, "never", "value", NULL);
	(void)blkin_record(trace, &annotation);
	(void)library_record(trace, &annotation);
	(void)blkin_init_timestamp_annotation(&annotation, "never", &here);
	(void)blkin_record(trace, &annotation);
	(void)library_record(trace, &annotation);
}

static void record_on_span(const struct blkin_span *span)
{
	BLKIN_EVENT(span, "never");
	BLKIN_EVENT_AT(BLKIN_LEVEL_EMERG, span, "never");
	BLKIN_INTEGER(span, "never", 7);
	BLKIN_STRING(span, "never", "value");
	BLKIN_STRING(span, "never", NULL);
	record_on_trace(&span->trace);
}

/* The trace, and what is made from it: children here and elsewhere. */
static void go_on_with_trace(const struct blkin_trace *trace)
{
	struct blkin_trace child;
	struct blkin_trace_info ids;
	struct blkin_trace_info_packed packed;
	struct blkin_span span;

	CHECK(is_zero(trace, sizeof *trace));
	record_on_trace(trace);
	UNSET(span);
	(void)blkin_span_of(&span, trace);
	CHECK(IS_ZERO(span));
	record_on_span(&span);
	UNSET(child);
	(void)blkin_init_child(&child, trace, NULL, "child");
	CHECK(IS_ZERO(child));
	record_on_trace(&child);
	UNSET(child);
	CHECK(blkin_init_child(&child, trace, &here, "child") == 0);
	record_on_trace(&child);
	UNSET(span);
	CHECK(blkin_span_child(&span, &trace->info, "child", &here) == 0);
	record_on_span(&span);
	CHECK(blkin_pack_trace_info(&trace->info, &packed) == 0 && IS_ZERO(packed));
	CHECK(blkin_unpack_trace_info(&packed, &ids) == 0 && IS_ZERO(ids));
}

static void go_on_with_span(const struct blkin_span *span)
{
	CHECK(is_zero(span, sizeof *span));
	record_on_span(span);
	go_on_with_trace(&span->trace);
}

#define REFUSED_SPAN(call)                    \
	do {                                  \
		UNSET(span);                  \
		CHECK((call) == -EINVAL);     \
		go_on_with_span(&span);       \
	} while (0)

static void spans_that_cannot_begin(const struct blkin_trace_info *parent)
{
	const struct blkin_trace nameless = { .info = *parent, .endpoint = &here };
	const struct blkin_trace homeless = { .name = "name", .info = *parent };
	const struct blkin_trace nobodys = { .name = "name", .info = *parent, .endpoint = &nobody };
	struct blkin_span span;

	REFUSED_SPAN(blkin_span_root(&span, NULL, &here));
	REFUSED_SPAN(blkin_span_root(&span, "name", NULL));
	REFUSED_SPAN(blkin_span_root(&span, "name", &nobody));
	REFUSED_SPAN(blkin_span_child(&span, NULL, "name", &here));
	REFUSED_SPAN(blkin_span_child(&span, parent, NULL, &here));
	REFUSED_SPAN(blkin_span_child(&span, parent, "name", NULL));
	REFUSED_SPAN(blkin_span_child(&span, parent, "name", &nobody));
	REFUSED_SPAN(blkin_span_of(&span, NULL));
	REFUSED_SPAN(blkin_span_of(&span, &nameless));
	REFUSED_SPAN(blkin_span_of(&span, &homeless));
	REFUSED_SPAN(blkin_span_of(&span, &nobodys));
}

#define REFUSED_TRACE(call)                   \
	do {                                  \
		UNSET(trace);                 \
		CHECK((call) == -EINVAL);     \
		go_on_with_trace(&trace);     \
	} while (0)

static void traces_that_cannot_begin(const struct blkin_trace_info *parent)
{
	const struct blkin_trace homeless = { .name = "name", .info = *parent };
	struct blkin_trace trace;

	REFUSED_TRACE(blkin_init_child(&trace, NULL, &here, "name"));
	REFUSED_TRACE(blkin_init_child(&trace, &homeless, NULL, "name"));
	REFUSED_TRACE(blkin_init_child_info(&trace, NULL, &here, "name"));
	REFUSED_TRACE(blkin_init_child_info(&trace, parent, NULL, "name"));
	REFUSED_TRACE(blkin_set_trace_properties(&trace, NULL, "name", &here));
	REFUSED_TRACE(blkin_set_trace_properties(&trace, parent, NULL, &here));
	REFUSED_TRACE(blkin_set_trace_properties(&trace, parent, "name", NULL));
}

static void ids_that_cannot_be_copied(void)
{
	struct blkin_trace_info ids;
	struct blkin_trace_info_packed packed;

	UNSET(ids);
	CHECK(blkin_get_trace_info(NULL, &ids) == -EINVAL && IS_ZERO(ids));
	UNSET(ids);
	CHECK(blkin_unpack_trace_info(NULL, &ids) == -EINVAL && IS_ZERO(ids));
	UNSET(packed);
	CHECK(blkin_pack_trace_info(NULL, &packed) == -EINVAL && IS_ZERO(packed));
}

static int same_ids(const struct blkin_trace_info *one, const struct blkin_trace_info *other)
{
	return !memcmp(one, other, sizeof *one);
}

/* What the struct was to be made from is a part of it, and all that was ever set. */
static void a_parent_inside_is_kept(const struct blkin_trace_info *parent)
{
	struct blkin_trace trace;
	struct blkin_span span;

	UNSET(trace);
	trace.info = *parent;
	CHECK(blkin_init_child_info(&trace, &trace.info, NULL, "name") == -EINVAL);
	CHECK(!trace.name && same_ids(&trace.info, parent) && !trace.endpoint);
	record_on_trace(&trace);
	UNSET(trace);
	trace.info = *parent;
	CHECK(blkin_set_trace_properties(&trace, &trace.info, "name", NULL) == -EINVAL);
	CHECK(!trace.name && same_ids(&trace.info, parent) && !trace.endpoint);
	record_on_trace(&trace);
	UNSET(span);
	span.trace.info = *parent;
	CHECK(blkin_span_child(&span, &span.trace.info, "name", &nobody) == -EINVAL);
	CHECK(!span.trace.name && same_ids(&span.trace.info, parent) && !span.trace.endpoint && !span.names);
	record_on_span(&span);
	UNSET(span);
	span.trace = (struct blkin_trace){ .info = *parent, .endpoint = &here };
	CHECK(blkin_span_of(&span, &span.trace) == -EINVAL);
	CHECK(!span.trace.name && same_ids(&span.trace.info, parent) && span.trace.endpoint == &here && !span.names);
	record_on_span(&span);
}

static void a_span_that_was_to_be_its_own_child_is_kept(const struct blkin_trace_info *parent)
{
	const struct blkin_trace homeless = { .name = "name", .info = *parent };
	struct blkin_trace trace = homeless;

	CHECK(blkin_init_child(&trace, &trace, NULL, "name") == -EINVAL);
	CHECK(!memcmp(&trace, &homeless, sizeof trace));
}

/* Structs beside the one that is to be filled in are not a part of it. */
static void neighbours_are_left_alone(const struct blkin_trace_info *parent)
{
	const struct blkin_trace homeless = { .name = "name", .info = *parent };
	struct blkin_trace traces[3] = { homeless, homeless, homeless };

	CHECK(blkin_init_child(&traces[1], &traces[0], NULL, "name") == -EINVAL && IS_ZERO(traces[1]));
	traces[1] = homeless;
	CHECK(blkin_init_child(&traces[1], &traces[2], NULL, "name") == -EINVAL && IS_ZERO(traces[1]));
	CHECK(!memcmp(&traces[0], &homeless, sizeof homeless) && !memcmp(&traces[2], &homeless, sizeof homeless));
}

#define REFUSED_ANNOTATION(call)                                                      \
	do {                                                                          \
		UNSET(annotation);                                                    \
		CHECK((call) == -EINVAL && IS_ZERO(annotation));                      \
		CHECK(blkin_record(root, &annotation) == expected);                   \
		CHECK(library_record(root, &annotation) == expected);                 \
		CHECK(blkin_record(&unsampled, &annotation) == 0);                    \
	} while (0)

static void annotations_that_lack_something(const struct blkin_trace *root)
{
	int (*const volatile library_record)(const struct blkin_trace *, const struct blkin_annotation *) = blkin_record;
	const struct blkin_trace unsampled = { .name = "name", .endpoint = &here };
	/* With BLKIN_OFF, no root is sampled. */
	const int expected = root->info.trace_id ? -EINVAL : 0;
	struct blkin_annotation annotation;

	REFUSED_ANNOTATION(blkin_init_string_annotation(&annotation, NULL, "value", &here));
	REFUSED_ANNOTATION(blkin_init_string_annotation(&annotation, "key", NULL, &here));
	REFUSED_ANNOTATION(blkin_init_integer_annotation(&annotation, NULL, 7, &here));
	REFUSED_ANNOTATION(blkin_init_timestamp_annotation(&annotation, NULL, &here));
}

static void one_round(void)
{
	static const struct blkin_trace_info parents[] = { { 11, 12, 13 }, { 0, 12, 13 }, { 0, 0, 0 } };
	struct blkin_trace root;
	struct blkin_span span;
	char key[16];
	size_t i;

	for (i = 0; i < sizeof parents / sizeof *parents; i++) {
		spans_that_cannot_begin(&parents[i]);
		traces_that_cannot_begin(&parents[i]);
		a_parent_inside_is_kept(&parents[i]);
		a_span_that_was_to_be_its_own_child_is_kept(&parents[i]);
		neighbours_are_left_alone(&parents[i]);
	}
	ids_that_cannot_be_copied();

	CHECK(blkin_init_new_trace(&root, "root", &here) == 0);
	annotations_that_lack_something(&root);
	CHECK(blkin_span_of(&span, &root) == 0);
	BLKIN_EVENT(&span, "arrives");
	expect(&root.info, "root", "10.0.0.1", 8080, "here", "arrives", "!");
	/* Texts change so often that the library notices it. */
	for (i = 0; i < 200; i++) {
		snprintf(key, sizeof key, "key %zu", i);
		BLKIN_TIMESTAMP(&root, NULL, key);
		expect(&root.info, "root", "10.0.0.1", 8080, "here", key, "!");
		BLKIN_KEYVAL_STRING(&root, NULL, key, "value");
		expect(&root.info, "root", "10.0.0.1", 8080, "here", key, "=value");
		annotations_that_lack_something(&root);
	}
}

/* In the first round nothing is recorded yet, and all names are new. */
int main(void)
{
	int round;

	for (round = 0; round < 3; round++)
		one_round();
	return 0;
}
