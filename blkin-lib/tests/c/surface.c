/* Tests every function, macro and constant of the C interface: what it returns, and what a consumer then reads. */
#include <errno.h>

#include "expect.h"

/* In second.c: the same header and constants in another file of the program. */
void record_from_another_file(const struct blkin_trace *trace);

static const struct blkin_endpoint gateway = { .ip = "10.0.0.1", .port = 8080, .name = "gateway" };

static void constants_are_the_core_annotations(void)
{
	CHECK(!strcmp(CLIENT_SEND, "cs") && !strcmp(CLIENT_RECV, "cr"));
	CHECK(!strcmp(SERVER_SEND, "ss") && !strcmp(SERVER_RECV, "sr"));
	CHECK(!strcmp(WIRE_SEND, "ws") && !strcmp(WIRE_RECV, "wr"));
	CHECK(!strcmp(CLIENT_SEND_FRAGMENT, "csf") && !strcmp(CLIENT_RECV_FRAGMENT, "crf"));
	CHECK(!strcmp(SERVER_SEND_FRAGMENT, "ssf") && !strcmp(SERVER_RECV_FRAGMENT, "srf"));
}

static void endpoints_keep_what_they_were_given(void)
{
	struct blkin_endpoint e;
	volatile int port = 40000;

	CHECK(blkin_init_endpoint(&e, gateway.ip, (int16_t)port, gateway.name) == 0);
	CHECK(e.ip == gateway.ip && e.port == 40000 && e.name == gateway.name);
	CHECK(blkin_init_endpoint(&e, NULL, 0, NULL) == 0);
	CHECK(e.ip == NULL && e.port == 0 && e.name == NULL);
	CHECK(blkin_init_endpoint(NULL, "10.0.0.1", 1, "x") == -EINVAL);
}

static void roots_have_ids_of_their_own(struct blkin_trace *root)
{
	struct blkin_trace_info info = { 0, 0, 0 };

	CHECK(blkin_init_new_trace(root, "request", &gateway) == 0);
	CHECK(!strcmp(root->name, "request") && root->endpoint == &gateway);
	CHECK(root->info.trace_id > 0 && root->info.span_id == root->info.trace_id);
	CHECK(root->info.parent_span_id == 0);
	CHECK(blkin_init_new_trace(NULL, "request", &gateway) == -EINVAL);
	blkin_init_trace_info(&info);
	CHECK(info.trace_id > 0 && info.span_id == info.trace_id && info.parent_span_id == 0);
	CHECK(info.trace_id != root->info.trace_id);
	blkin_init_trace_info(NULL);
}

static void check_child(const struct blkin_trace *child, const struct blkin_trace *parent)
{
	CHECK(child->info.trace_id == parent->info.trace_id);
	CHECK(child->info.parent_span_id == parent->info.span_id);
	CHECK(child->info.span_id > 0 && child->info.span_id != parent->info.span_id);
}

static void children_keep_the_trace(const struct blkin_trace *root)
{
	const struct blkin_endpoint osd = { "::1", 6800, "osd" };
	const struct blkin_trace homeless = { .name = "vlmc", .info = root->info };
	struct blkin_trace child, refused;

	CHECK(blkin_init_child(&child, root, &osd, "write") == 0);
	check_child(&child, root);
	CHECK(child.endpoint == &osd && !strcmp(child.name, "write"));
	CHECK(blkin_init_child(&child, root, NULL, "write") == 0);
	CHECK(child.endpoint == root->endpoint);
	CHECK(blkin_init_child_info(&child, &root->info, &osd, "remote") == 0);
	check_child(&child, root);

	CHECK(blkin_init_child(NULL, root, &osd, "x") == -EINVAL);
	CHECK(blkin_init_child(&refused, NULL, &osd, "x") == -EINVAL);
	CHECK(blkin_init_child(&refused, &homeless, NULL, "x") == -EINVAL);
	CHECK(blkin_init_child_info(NULL, &root->info, &osd, "x") == -EINVAL);
	CHECK(blkin_init_child_info(&refused, NULL, &osd, "x") == -EINVAL);
	CHECK(blkin_init_child_info(&refused, &root->info, NULL, "x") == -EINVAL);
	CHECK(is_zero(&refused, sizeof refused));
}

static void a_span_may_become_its_own_child(const struct blkin_trace *root)
{
	struct blkin_trace step = *root;

	CHECK(blkin_init_child(&step, &step, NULL, "step") == 0);
	check_child(&step, root);
	CHECK(blkin_init_child_info(&step, &step.info, &gateway, "next step") == 0);
	CHECK(step.info.trace_id == root->info.trace_id && step.info.parent_span_id != root->info.span_id);
}

static void trace_info_is_copied_in_and_out(const struct blkin_trace *root)
{
	const struct blkin_trace_info ids = { 11, 12, 13 };
	struct blkin_trace_info out = { 0, 0, 0 };
	struct blkin_trace trace = { .name = "vlmc" };

	CHECK(blkin_get_trace_info(root, &out) == 0);
	CHECK(!memcmp(&out, &root->info, sizeof out));
	CHECK(blkin_set_trace_info(&trace, &ids) == 0);
	CHECK(!memcmp(&trace.info, &ids, sizeof ids) && !strcmp(trace.name, "vlmc") && !trace.endpoint);
	CHECK(blkin_set_trace_properties(&trace, &root->info, "shared", &gateway) == 0);
	CHECK(trace.info.span_id == root->info.span_id && !strcmp(trace.name, "shared"));
	CHECK(trace.endpoint == &gateway);

	CHECK(blkin_get_trace_info(NULL, &out) == -EINVAL && blkin_get_trace_info(root, NULL) == -EINVAL);
	CHECK(blkin_set_trace_info(NULL, &ids) == -EINVAL && blkin_set_trace_info(&trace, NULL) == -EINVAL);
	CHECK(trace.info.span_id == root->info.span_id && !strcmp(trace.name, "shared"));
	CHECK(blkin_set_trace_properties(NULL, &ids, "x", &gateway) == -EINVAL);
	CHECK(blkin_set_trace_properties(&trace, NULL, "x", &gateway) == -EINVAL);
	CHECK(blkin_set_trace_properties(&trace, &ids, NULL, &gateway) == -EINVAL);
	CHECK(blkin_set_trace_properties(&trace, &ids, "x", NULL) == -EINVAL);
	CHECK(is_zero(&trace, sizeof trace));
}

static void packed_ids_are_24_big_endian_bytes(void)
{
	static const unsigned char wire[] = { 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3,  4,
					      127, 255, 255, 255, 255, 255, 255, 254 };
	const struct blkin_trace_info ids = { 0x102, 0x304, INT64_MAX - 1 };
	struct blkin_trace_info back = { 0, 0, 0 };
	unsigned char message[1 + sizeof(struct blkin_trace_info_packed)];
	struct blkin_trace_info_packed *packed = (struct blkin_trace_info_packed *)(void *)(message + 1);

	CHECK(blkin_pack_trace_info(&ids, packed) == 0);
	CHECK(!memcmp(packed, wire, sizeof wire));
	CHECK(blkin_unpack_trace_info(packed, &back) == 0);
	CHECK(!memcmp(&back, &ids, sizeof ids));
	CHECK(blkin_pack_trace_info(NULL, packed) == -EINVAL && blkin_pack_trace_info(&ids, NULL) == -EINVAL);
	CHECK(blkin_unpack_trace_info(NULL, &back) == -EINVAL && blkin_unpack_trace_info(packed, NULL) == -EINVAL);
}

static void annotations_are_filled_in(struct blkin_annotation *a)
{
	CHECK(blkin_init_string_annotation(a, "key", "text", NULL) == 0);
	CHECK(a->type == ANNOT_STRING && !strcmp(a->key, "key") && !strcmp(a->val_str, "text") && !a->endpoint);
	CHECK(blkin_init_integer_annotation(a, "key", INT64_MIN, &gateway) == 0);
	CHECK(a->type == ANNOT_INTEGER && a->val_int == INT64_MIN && a->endpoint == &gateway);
	CHECK(blkin_init_timestamp_annotation(a, "event", NULL) == 0);
	CHECK(a->type == ANNOT_TIMESTAMP && !strcmp(a->val_str, "event") && !a->endpoint);

	CHECK(blkin_init_string_annotation(NULL, "k", "v", NULL) == -EINVAL);
	CHECK(blkin_init_string_annotation(a, NULL, "v", NULL) == -EINVAL);
	CHECK(blkin_init_string_annotation(a, "k", NULL, NULL) == -EINVAL);
	CHECK(blkin_init_integer_annotation(NULL, "k", 1, NULL) == -EINVAL);
	CHECK(blkin_init_integer_annotation(a, NULL, 1, NULL) == -EINVAL);
	CHECK(blkin_init_timestamp_annotation(NULL, "e", NULL) == -EINVAL);
	CHECK(blkin_init_timestamp_annotation(a, NULL, NULL) == -EINVAL);
	CHECK(is_zero(a, sizeof *a));
}

static void record_needs_a_name_an_endpoint_and_content(const struct blkin_trace *root)
{
	const struct blkin_endpoint nameless = { "10.0.0.1", 1, NULL };
	struct blkin_annotation good, bad;
	struct blkin_trace trace = *root;

	CHECK(blkin_init_timestamp_annotation(&good, "never", NULL) == 0);
	CHECK(blkin_record(NULL, &good) == -EINVAL && blkin_record(root, NULL) == -EINVAL);
	trace.name = NULL;
	CHECK(blkin_record(&trace, &good) == -EINVAL);
	trace = *root;
	trace.endpoint = NULL;
	CHECK(blkin_record(&trace, &good) == -EINVAL);
	trace.endpoint = &nameless;
	CHECK(blkin_record(&trace, &good) == -EINVAL);
	bad = good;
	bad.val_str = NULL;
	CHECK(blkin_record(root, &bad) == -EINVAL);
	bad.type = ANNOT_STRING;
	bad.key = "k";
	CHECK(blkin_record(root, &bad) == -EINVAL);
	bad.key = NULL;
	bad.val_str = "v";
	CHECK(blkin_record(root, &bad) == -EINVAL);
	bad.type = ANNOT_INTEGER;
	CHECK(blkin_record(root, &bad) == -EINVAL);
	memset(&bad.type, 7, sizeof bad.type);
	bad.key = "k";
	CHECK(blkin_record(root, &bad) == -EINVAL);
}

static void unsampled_spans_are_silent(void)
{
	struct blkin_trace none, child;
	struct blkin_annotation a;
	int evaluated = 0;

	memset(&none, 0, sizeof none);
	CHECK(blkin_init_timestamp_annotation(&a, "never", NULL) == 0);
	CHECK(blkin_record(&none, &a) == 0);
	CHECK(blkin_init_child(&child, &none, &gateway, "child") == 0);
	CHECK(child.info.trace_id == 0);
	CHECK(blkin_init_child_info(&child, &none.info, &gateway, "child") == 0);
	CHECK(child.info.trace_id == 0 && blkin_record(&child, &a) == 0);
	BLKIN_KEYVAL_INTEGER(&child, NULL, "never", ++evaluated);
	CHECK(evaluated == 1);
	BLKIN_TIMESTAMP((const struct blkin_trace *)NULL, NULL, "never");
}

static void recorded_annotations_arrive(const struct blkin_trace *root)
{
	const struct blkin_endpoint v6 = { "2001:db8::1", 65535, "disk" }, bare = { NULL, 0, "bare" };
	struct blkin_annotation a;
	struct blkin_trace child;

	CHECK(blkin_init_timestamp_annotation(&a, SERVER_RECV, NULL) == 0 && blkin_record(root, &a) == 0);
	CHECK(blkin_record(root, &a) == 0);
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "sr", "!");
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "sr", "!");
	CHECK(blkin_init_string_annotation(&a, "object", "alpha", &v6) == 0 && blkin_record(root, &a) == 0);
	expect(&root->info, "request", "2001:db8::1", 65535, "disk", "object", "=alpha");
	CHECK(blkin_init_integer_annotation(&a, "bytes", INT64_MIN, &bare) == 0 && blkin_record(root, &a) == 0);
	expect(&root->info, "request", "", 0, "bare", "bytes", "#-9223372036854775808");
	CHECK(blkin_init_string_annotation(&a, "", "", NULL) == 0 && blkin_record(root, &a) == 0);
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "", "=");
	CHECK(blkin_init_child(&child, root, &v6, "child") == 0);
	CHECK(blkin_init_timestamp_annotation(&a, "end", NULL) == 0 && blkin_record(&child, &a) == 0);
	expect(&child.info, "child", "2001:db8::1", 65535, "disk", "end", "!");
}

static void macros_record_with_and_without_semicolon(const struct blkin_trace *root)
{
	BLKIN_TIMESTAMP(root, &gateway, CLIENT_SEND);
	BLKIN_TIMESTAMP(root, NULL, "no semicolon")
	BLKIN_KEYVAL_STRING(root, &gateway, "string", "s1");
	BLKIN_KEYVAL_STRING(root, NULL, "string", "s2")
	BLKIN_KEYVAL_INTEGER(root, &gateway, "integer", 1);
	BLKIN_KEYVAL_INTEGER(root, NULL, "integer", -2)
	BLKIN_KEYVAL(root, &gateway, "keyval", "k1");
	BLKIN_KEYVAL(root, NULL, "keyval", "k2")
	if (root)
		BLKIN_TIMESTAMP(root, NULL, "last in an if");
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "cs", "!");
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "no semicolon", "!");
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "string", "=s1");
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "string", "=s2");
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "integer", "#1");
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "integer", "#-2");
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "keyval", "=k1");
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "keyval", "=k2");
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "last in an if", "!");
}

static void buffers_may_be_reused(const struct blkin_trace *root)
{
	char key[32], value[32], number[32], ip[32] = "10.0.0.1", service[32] = "first";
	struct blkin_endpoint e = { ip, 1, service };
	int i;

	for (i = 0; i < 5; i++) {
		snprintf(key, sizeof key, "key %d", i);
		snprintf(value, sizeof value, "value %d", i);
		snprintf(service, sizeof service, "service %d", i);
		snprintf(ip, sizeof ip, "10.0.0.%d", i);
		BLKIN_KEYVAL_STRING(root, &e, key, value);
		snprintf(number, sizeof number, "=value %d", i);
		expect(&root->info, "request", ip, 1, service, key, number);
	}
}

/* Texts change so often that the library notices it; after that, some texts stay the same once. */
static void texts_that_change_each_time_arrive(const struct blkin_trace *root)
{
	char name[32] = "name", service[32] = "service", key[32], value[32];
	struct blkin_endpoint e = { "10.0.0.1", 1, service };
	struct blkin_trace trace = *root;
	int i;

	trace.name = name;
	trace.endpoint = &e;
	for (i = 0; i < 400; i++) {
		if (i % 50 > 2) {
			snprintf(name, sizeof name, "name %d", i);
			snprintf(service, sizeof service, "service %d", i);
		}
		if (i % 20 > 2)
			snprintf(key, sizeof key, "key %d", i);
		else if (i % 20 == 0)
			strcpy(key, "key");
		BLKIN_TIMESTAMP(&trace, &e, key);
		expect(&trace.info, name, "10.0.0.1", 1, service, key, "!");
		BLKIN_TIMESTAMP(root, NULL, key);
		expect(&root->info, "request", "10.0.0.1", 8080, "gateway", key, "!");
		BLKIN_KEYVAL_INTEGER(&trace, NULL, "integer", i);
		snprintf(value, sizeof value, "#%d", i);
		expect(&trace.info, name, "10.0.0.1", 1, service, "integer", value);
		BLKIN_KEYVAL_INTEGER(root, NULL, key, i);
		expect(&root->info, "request", "10.0.0.1", 8080, "gateway", key, value);
		value[0] = '=';
		BLKIN_KEYVAL_STRING(&trace, NULL, key, value + 1);
		expect(&trace.info, name, "10.0.0.1", 1, service, key, value);
	}
}

static void spans_and_literals_are_looked_up_once(const struct blkin_trace *root)
{
	static const char *const colours[] = { "red", "green", "blue" };
	struct blkin_trace unsampled = *root;
	struct blkin_span span;
	char value[16];
	int i;

	CHECK(blkin_span_of(NULL, root) == -EINVAL && blkin_span_of(&span, NULL) == -EINVAL);
	CHECK(blkin_span_of(&span, root) == 0);
	for (i = 0; i < 3; i++) {
		BLKIN_EVENT(&span, "literal event");
		expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "literal event", "!");
		BLKIN_INTEGER_AT(BLKIN_LEVEL_ERR, &span, "literal key", -i);
		snprintf(value, sizeof value, "#%d", -i);
		expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "literal key", value);
		BLKIN_STRING(&span, "literal key", colours[i]);
		snprintf(value, sizeof value, "=%s", colours[i]);
		expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "literal key", value);
	}
	BLKIN_STRING(&span, "literal key", NULL);
	unsampled.info.trace_id = 0;
	CHECK(blkin_span_of(&span, &unsampled) == 0);
	BLKIN_EVENT(&span, "unsampled");
}

static void what_a_span_needs_to_begin_is_asked_for(const struct blkin_trace *root)
{
	const struct blkin_endpoint nobody = { "10.0.0.1", 8080, NULL };
	struct blkin_span span;

	CHECK(blkin_span_root(NULL, "name", &gateway) == -EINVAL && blkin_span_root(&span, NULL, &gateway) == -EINVAL);
	CHECK(blkin_span_root(&span, "name", NULL) == -EINVAL && blkin_span_root(&span, "name", &nobody) == -EINVAL);
	CHECK(blkin_span_child(NULL, &root->info, "name", &gateway) == -EINVAL);
	CHECK(blkin_span_child(&span, NULL, "name", &gateway) == -EINVAL);
	CHECK(blkin_span_child(&span, &root->info, NULL, &gateway) == -EINVAL);
	CHECK(blkin_span_child(&span, &root->info, "name", NULL) == -EINVAL);
	CHECK(blkin_span_child(&span, &root->info, "name", &nobody) == -EINVAL);
	CHECK(is_zero(&span, sizeof span));
}

/* In the first round the library meets each span for the first time, in later rounds it knows them. */
static void spans_begin_and_are_looked_up_in_one_call(void)
{
	const struct blkin_endpoint no_address = { NULL, 0, "nowhere" };
	const struct blkin_trace_info unsampled = { 0, 7, 8 };
	struct blkin_span span, child;
	int64_t last = 0, parent;
	int i;

	for (i = 0; i < 3; i++) {
		CHECK(blkin_span_root(&span, "root at once", &gateway) == 0);
		CHECK(span.trace.info.trace_id > 0 && span.trace.info.span_id == span.trace.info.trace_id);
		CHECK(span.trace.info.parent_span_id == 0 && span.trace.info.trace_id != last);
		last = span.trace.info.trace_id;
		BLKIN_EVENT(&span, "begun");
		expect(&span.trace.info, "root at once", "10.0.0.1", 8080, "gateway", "begun", "!");
		CHECK(blkin_span_child(&child, &span.trace.info, "child at once", &no_address) == 0);
		CHECK(child.trace.info.trace_id == last && child.trace.info.span_id > 0 && child.trace.info.span_id != last);
		CHECK(child.trace.info.parent_span_id == span.trace.info.span_id);
		BLKIN_INTEGER(&child, "number", 7);
		expect(&child.trace.info, "child at once", "", 0, "nowhere", "number", "#7");
		parent = child.trace.info.span_id;
		CHECK(blkin_span_child(&child, &child.trace.info, "a child that takes its parent's place", &gateway) == 0);
		CHECK(child.trace.info.trace_id == last && child.trace.info.parent_span_id == parent);
		BLKIN_TIMESTAMP(&child.trace, NULL, "legacy");
		expect(&child.trace.info, "a child that takes its parent's place", "10.0.0.1", 8080, "gateway", "legacy", "!");
	}
	CHECK(blkin_span_child(&child, &unsampled, "child at once", &gateway) == 0);
	CHECK(child.trace.info.trace_id == 0 && child.trace.info.span_id == 0 && child.trace.info.parent_span_id == 0);
	BLKIN_EVENT(&child, "unsampled");
}

static void three_int64_may_be_cast(const struct blkin_trace *root)
{
	int64_t triple[3] = { root->info.trace_id, root->info.span_id, root->info.parent_span_id };
	struct blkin_trace trace = { .name = "vlmc" };

	CHECK(blkin_set_trace_info(&trace, (struct blkin_trace_info *)triple) == 0);
	BLKIN_TIMESTAMP(&trace, &gateway, "cast");
	expect(&trace.info, "vlmc", "10.0.0.1", 8080, "gateway", "cast", "!");
}

static void long_strings_are_cut(const struct blkin_trace *root)
{
	static char text[6000], cut[4098];

	memset(text, 'x', sizeof text - 1);
	memset(cut, 'x', sizeof cut - 1);
	cut[0] = '=';
	BLKIN_KEYVAL_STRING(root, NULL, "long", text);
	expect(&root->info, "request", "10.0.0.1", 8080, "gateway", "long", cut);
}

int main(void)
{
	struct blkin_trace root;
	struct blkin_annotation a;

	errno = 77;
	roots_have_ids_of_their_own(&root);
	CHECK(blkin_init() == 0 && blkin_init() == 0);
	constants_are_the_core_annotations();
	endpoints_keep_what_they_were_given();
	children_keep_the_trace(&root);
	a_span_may_become_its_own_child(&root);
	trace_info_is_copied_in_and_out(&root);
	packed_ids_are_24_big_endian_bytes();
	annotations_are_filled_in(&a);
	record_needs_a_name_an_endpoint_and_content(&root);
	unsampled_spans_are_silent();
	BLKIN_TIMESTAMP(&root, NULL, "errno");
	CHECK(errno == 77);
	expect(&root.info, "request", "10.0.0.1", 8080, "gateway", "errno", "!");
	recorded_annotations_arrive(&root);
	macros_record_with_and_without_semicolon(&root);
	buffers_may_be_reused(&root);
	texts_that_change_each_time_arrive(&root);
	spans_and_literals_are_looked_up_once(&root);
	what_a_span_needs_to_begin_is_asked_for(&root);
	spans_begin_and_are_looked_up_in_one_call();
	three_int64_may_be_cast(&root);
	long_strings_are_cut(&root);
	record_from_another_file(&root);
	return 0;
}
