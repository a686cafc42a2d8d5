// ZTrace and ZTraceEndpoint, the original branch's handles, in a program written for that branch: it uses `string` and
// `ostringstream` unqualified, and endpoints and names are temporaries.
extern "C" {
#include <blkin-front.h>
}
#include <ztracer.hpp>

#include <cerrno>

#include "expect.h"

struct message {
	int actual_message;
	struct blkin_trace_info trace_info;
};

static struct blkin_trace_info ids(ZTracer::ZTraceRef trace)
{
	struct blkin_trace_info info;

	CHECK(trace->get_trace_info(&info) == 0);
	return info;
}

static void check_child(const struct blkin_trace_info &child, const struct blkin_trace_info &parent)
{
	CHECK(child.trace_id == parent.trace_id && child.parent_span_id == parent.span_id);
	CHECK(child.span_id > 0 && child.span_id != parent.span_id);
}

static void helpers_copy_text()
{
	string text("text");
	ostringstream stream;

	stream << "number " << 7;
	char *copy = ZTracer::to_cstr(text), *streamed = ZTracer::ostr_to_cstr(stream);
	CHECK(!strcmp(copy, "text") && !strcmp(streamed, "number 7"));
	delete[] copy;
	delete[] streamed;
}

static void every_factory_makes_a_trace()
{
	ZTracer::ZTraceEndpointRef e = ZTracer::create_ZTraceEndpoint("10.0.0.1", 40000, "parent");
	ZTracer::ZTraceEndpointRef f = ZTracer::create_ZTraceEndpoint("10.0.0.2", 2, "child");
	ZTracer::ZTraceRef root = ZTracer::create_ZTrace("root", e);
	ZTracer::ZTraceRef child = ZTracer::create_ZTrace("child", root);
	ZTracer::ZTraceRef away = ZTracer::create_ZTrace("away", root, f);
	struct blkin_trace_info root_ids = ids(root);
	ZTracer::ZTraceRef same = ZTracer::create_ZTrace("same", f, &root_ids);
	ZTracer::ZTraceRef remote = ZTracer::create_ZTrace("remote", f, &root_ids, true);

	CHECK(root_ids.span_id == root_ids.trace_id && root_ids.parent_span_id == 0);
	check_child(ids(child), root_ids);
	check_child(ids(away), root_ids);
	check_child(ids(remote), root_ids);
	CHECK(ids(same).span_id == root_ids.span_id);
	CHECK(child->get_endpoint() == e && away->get_endpoint() == f);
	e.reset();
	CHECK(child->event("start") == 0 && away->event("start") == 0);
	struct blkin_trace_info child_ids = ids(child), away_ids = ids(away);
	expect(&child_ids, "child", "10.0.0.1", 40000, "parent", "start", "!");
	expect(&away_ids, "away", "10.0.0.2", 2, "child", "start", "!");
}

static void every_constructor_makes_a_trace()
{
	ZTracer::ZTraceEndpointRef e(new ZTracer::ZTraceEndpoint("", 0, "here"));
	ZTracer::ZTraceRef root(new ZTracer::ZTrace("root", e));
	ZTracer::ZTrace child("child", root), other("other", root, e);
	struct blkin_trace_info root_ids = ids(root), info;
	ZTracer::ZTrace same("same", e, &root_ids), remote("remote", e, &root_ids, true);

	CHECK(child.get_trace_info(&info) == 0 && info.parent_span_id == root_ids.span_id);
	CHECK(other.get_trace_info(&info) == 0 && info.parent_span_id == root_ids.span_id);
	CHECK(remote.get_trace_info(&info) == 0 && info.parent_span_id == root_ids.span_id);
	CHECK(remote.set_trace_info(&root_ids) == 0 && remote.get_trace_info(&info) == 0);
	CHECK(info.span_id == root_ids.span_id);
	CHECK(remote.get_trace_info(nullptr) == -EINVAL && remote.set_trace_info(nullptr) == -EINVAL);
	CHECK(same.event("here") == 0);
	expect(&root_ids, "same", "", 0, "here", "here", "!");
}

static void every_overload_records()
{
	ZTracer::ZTraceEndpointRef e = ZTracer::create_ZTraceEndpoint("10.0.0.1", 1, "one");
	ZTracer::ZTraceEndpointRef f = ZTracer::create_ZTraceEndpoint("10.0.0.2", 2, "two");
	ZTracer::ZTraceRef trace = ZTracer::create_ZTrace("overloads", e);
	struct blkin_trace_info info = ids(trace);
	ostringstream value;

	value << "value " << 1;
	CHECK(trace->event("event") == 0 && trace->event("event", f) == 0);
	CHECK(trace->keyval("key", value.str()) == 0 && trace->keyval("key", "there", f) == 0);
	expect(&info, "overloads", "10.0.0.1", 1, "one", "event", "!");
	expect(&info, "overloads", "10.0.0.2", 2, "two", "event", "!");
	expect(&info, "overloads", "10.0.0.1", 1, "one", "key", "=value 1");
	expect(&info, "overloads", "10.0.0.2", 2, "two", "key", "=there");
}

static void a_child_keeps_the_endpoint_that_it_has_from_its_parent()
{
	ZTracer::ZTraceRef parent = ZTracer::create_ZTrace("parent", ZTracer::create_ZTraceEndpoint("10.0.0.1", 1, "one"));
	ZTracer::ZTraceRef child = ZTracer::create_ZTrace("orphan", parent, ZTracer::ZTraceEndpointRef());
	struct blkin_trace_info info = ids(child);

	parent.reset();
	CHECK(child->get_endpoint() && child->event("alone") == 0);
	expect(&info, "orphan", "10.0.0.1", 1, "one", "alone", "!");
}

static void both_families_share_a_trace()
{
	ZTracer::ZTraceRef root = ZTracer::create_ZTrace("root", ZTracer::create_ZTraceEndpoint("10.0.0.1", 1, "one"));
	struct message msg = { 1, ids(root) };
	ZTracer::Endpoint there("10.0.0.4", 4, "there");
	ZTracer::Trace child("child", &there, &msg.trace_info, true);

	check_child(*child.get_info(), msg.trace_info);
	child.event(SERVER_RECV);
	expect(child.get_info(), "child", "10.0.0.4", 4, "there", "sr", "!");
}

int main()
{
	int r = ZTracer::ztrace_init();

	CHECK(r == 0);
	helpers_copy_text();
	every_factory_makes_a_trace();
	every_constructor_makes_a_trace();
	every_overload_records();
	a_child_keeps_the_endpoint_that_it_has_from_its_parent();
	both_families_share_a_trace();
	return 0;
}
