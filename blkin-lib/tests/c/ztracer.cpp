// Tests Endpoint and Trace: every constructor and overload, what they own and borrow, and known faults of the
// original classes that must not come back.
#include <ztracer.hpp>

#include <cerrno>
#include <type_traits>
#include <vector>

#include "expect.h"

using namespace ZTracer;

// In ztracer_second.cpp: the same header in another file of the program.
void record_from_another_file(const Trace &trace);

static_assert(std::is_same<decltype(ztrace_init()), int>::value, "int ztrace_init()");
static_assert(std::is_convertible<Trace, bool>::value, "operator bool");
static_assert(std::is_same<decltype(std::declval<Trace &>() = std::declval<const Trace &>()), const Trace &>::value,
	      "const Trace &operator=");
static_assert(
    std::is_same<decltype(std::declval<Endpoint &>() = std::declval<const Endpoint &>()), const Endpoint &>::value,
    "const Endpoint &operator=");

static void expect_event(const Trace &trace, const char *name, const char *ip, int port, const char *service,
			 const char *event)
{
	expect(trace.get_info(), name, ip, port, service, event, "!");
}

static void constants_are_the_same_everywhere()
{
	CHECK(!strcmp(CLIENT_SEND, "cs") && ZTracer::CLIENT_SEND == ::CLIENT_SEND);
	CHECK(!strcmp(ZTracer::CLIENT_RECV, "cr") && !strcmp(ZTracer::SERVER_SEND, "ss"));
	CHECK(!strcmp(ZTracer::SERVER_RECV, "sr") && !strcmp(ZTracer::WIRE_SEND, "ws"));
	CHECK(!strcmp(ZTracer::WIRE_RECV, "wr") && !strcmp(ZTracer::CLIENT_SEND_FRAGMENT, "csf"));
	CHECK(!strcmp(ZTracer::CLIENT_RECV_FRAGMENT, "crf") && !strcmp(ZTracer::SERVER_SEND_FRAGMENT, "ssf"));
	CHECK(!strcmp(ZTracer::SERVER_RECV_FRAGMENT, "srf"));
}

static void endpoints_say_who_records()
{
	Endpoint named("only a name");
	Trace trace("t", &named);

	trace.event("e1");
	expect_event(trace, "t", "0.0.0.0", 0, "only a name", "e1");
	named.set_port(40000);
	named.copy_ip(string("10.1.") + "2.3");
	named.copy_name(string("copied ") + "name");
	trace.event("e2");
	expect_event(trace, "t", "10.1.2.3", 40000, "copied name", "e2");

	Endpoint other("10.9.9.9", 65535, "other");
	named.copy_address_from(&other);
	trace.event("e3");
	expect_event(trace, "t", "10.9.9.9", 65535, "copied name", "e3");
	named.copy_ip("1.1.1.1");
	other.copy_ip("10.8.8.8");
	named.share_address_from(&other);
	trace.event("e4");
	expect_event(trace, "t", "10.8.8.8", 65535, "copied name", "e4");

	Endpoint without(nullptr, 1, "no address");
	named.copy_address_from(&without);
	trace.event("e5");
	expect_event(trace, "t", "", 1, "copied name", "e5");
}

static void copies_of_endpoints_stand_alone()
{
	std::vector<Endpoint> kept;
	{
		Endpoint temporary("10.0.0.1", 7, "x");
		temporary.copy_name(string("a name that is too long to be kept in the object itself"));
		temporary.copy_ip(string("2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff"));
		kept.push_back(temporary);
		kept.push_back(Endpoint("y"));
		kept[1] = temporary;
		const Endpoint &self = kept[1];
		kept[1] = self;
	}
	for (const Endpoint &endpoint : kept) {
		Trace trace("copies", &endpoint);

		trace.event("copy");
		expect_event(trace, "copies", "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", 7,
			     "a name that is too long to be kept in the object itself", "copy");
	}
	Endpoint borrowing("10.0.0.1", 7, "borrowed");
	borrowing.copy_ip("9.9.9.9");
	Endpoint shared("8.8.8.8", 8, "shared");
	borrowing.share_address_from(&shared);
	Endpoint copy(borrowing);
	Trace trace("copies", &copy);
	trace.event("shared");
	expect_event(trace, "copies", "8.8.8.8", 8, "borrowed", "shared");
}

static void check_child(const Trace &child, const Trace &parent)
{
	CHECK(child.valid() && child.get_info()->trace_id == parent.get_info()->trace_id);
	CHECK(child.get_info()->parent_span_id == parent.get_info()->span_id);
	CHECK(child.get_info()->span_id != parent.get_info()->span_id);
}

static void traces_are_constructed(const Endpoint &osd)
{
	Endpoint own("10.0.0.2", 2, "own");
	Trace empty;

	CHECK(!empty.valid() && !empty && empty.get_info()->trace_id == 0);
	empty.event("never");
	empty.keyval("never", "never");

	Trace root("root", &osd), orphan("orphan", &osd, &empty), child("child", &own, &root),
	    heir("heir", nullptr, &root);
	CHECK(root && root.get_info()->span_id == root.get_info()->trace_id);
	CHECK(orphan.valid() && orphan.get_info()->parent_span_id == 0);
	check_child(child, root);
	check_child(heir, root);
	heir.event("inherits the endpoint");
	expect_event(heir, "heir", "10.0.0.1", 6800, "osd", "inherits the endpoint");
	child.event("own endpoint");
	expect_event(child, "child", "10.0.0.2", 2, "own", "own endpoint");

	Trace same("same", &own, root.get_info()), remote("remote", &own, root.get_info(), true);
	CHECK(!memcmp(same.get_info(), root.get_info(), sizeof(blkin_trace_info)));
	check_child(remote, root);
	same.event("same ids");
	expect_event(same, "same", "10.0.0.2", 2, "own", "same ids");

	Trace nowhere("nowhere", nullptr, root.get_info(), true), nobody("nobody", &own, (const blkin_trace_info *)nullptr);
	CHECK(!nowhere.valid() && !nobody.valid());
}

static void traces_are_initialised_again(const Endpoint &osd)
{
	Trace root("root", &osd), trace;

	CHECK(trace.init("first", &osd) == 0 && trace.get_info()->parent_span_id == 0);
	CHECK(trace.init("child", nullptr, &root) == 0);
	check_child(trace, root);
	trace.copy_name("a stored name");
	// The name that is passed counts, not the one stored before.
	CHECK(trace.init("joined", &osd, root.get_info()) == 0);
	trace.event("joined");
	expect_event(trace, "joined", "10.0.0.1", 6800, "osd", "joined");
	CHECK(trace.init("joined child", &osd, root.get_info(), true) == 0);
	check_child(trace, root);
	trace.event("joined child");
	expect_event(trace, "joined child", "10.0.0.1", 6800, "osd", "joined child");
	CHECK(trace.init("x", nullptr, root.get_info()) == -EINVAL);
	CHECK(trace.init("x", nullptr, root.get_info(), true) == -EINVAL);
	CHECK(trace.init("x", &osd, (const blkin_trace_info *)nullptr) == -EINVAL);
	CHECK(trace.init(nullptr, &osd, root.get_info()) == -EINVAL);
	CHECK(!trace.valid());
	trace.event("never");
	CHECK(trace.init("joined", &osd, root.get_info()) == 0);
	CHECK(trace.init("x", nullptr, trace.get_info()) == -EINVAL);
	CHECK(trace.get_info()->span_id == root.get_info()->span_id);
	trace.event("never");
	trace.set_info(root.get_info());
	CHECK(trace.get_info()->span_id == root.get_info()->span_id);
}

static void copies_of_traces_stand_alone(const Endpoint &osd)
{
	Trace kept, assigned;
	{
		Trace temporary("short", &osd);
		temporary.copy_name(string("a name that is too long to be kept in the object itself"));
		kept = temporary;
		assigned = Trace(temporary);
		const Trace &self = assigned;
		assigned = self;
	}
	kept.event("kept");
	assigned.event("kept");
	expect_event(kept, "a name that is too long to be kept in the object itself", "10.0.0.1", 6800, "osd", "kept");
	expect_event(kept, "a name that is too long to be kept in the object itself", "10.0.0.1", 6800, "osd", "kept");
	kept.init("literal again", &osd);
	Trace copy(kept);
	copy.event("copy");
	expect_event(copy, "literal again", "10.0.0.1", 6800, "osd", "copy");
}

static void every_overload_records(const Endpoint &osd)
{
	Endpoint elsewhere("10.0.0.3", 3, "elsewhere");
	const Trace trace("overloads", &osd);
	const blkin_trace_info *ids = trace.get_info();

	trace.keyval("string", "value");
	trace.keyval("string", "there", &elsewhere);
	trace.keyval("integer", INT64_MAX);
	trace.keyval("integer", 7);
	trace.keyval("integer", (int64_t)-1, &elsewhere);
	trace.keyval("integer", 0);
	trace.keyval("integer", 0U, &elsewhere);
	trace.event("event");
	trace.event("event", &elsewhere);
	trace.event("event", nullptr);
	expect(ids, "overloads", "10.0.0.1", 6800, "osd", "string", "=value");
	expect(ids, "overloads", "10.0.0.3", 3, "elsewhere", "string", "=there");
	expect(ids, "overloads", "10.0.0.1", 6800, "osd", "integer", "#9223372036854775807");
	expect(ids, "overloads", "10.0.0.1", 6800, "osd", "integer", "#7");
	expect(ids, "overloads", "10.0.0.3", 3, "elsewhere", "integer", "#-1");
	expect(ids, "overloads", "10.0.0.1", 6800, "osd", "integer", "#0");
	expect(ids, "overloads", "10.0.0.3", 3, "elsewhere", "integer", "#0");
	expect(ids, "overloads", "10.0.0.1", 6800, "osd", "event", "!");
	expect(ids, "overloads", "10.0.0.3", 3, "elsewhere", "event", "!");
	expect(ids, "overloads", "10.0.0.1", 6800, "osd", "event", "!");
}

static void a_trace_is_a_span_for_the_macros(const Endpoint &osd)
{
	Trace trace("hot", &osd), empty;
	blkin_span span;

	trace.copy_name(string("hot ") + "path");
	CHECK(trace.span_of(nullptr) == -EINVAL && empty.span_of(&span) == -EINVAL);
	BLKIN_EVENT(&span, "never");
	CHECK(trace.span_of(&span) == 0);
	BLKIN_EVENT(&span, "begins");
	expect_event(trace, "hot path", "10.0.0.1", 6800, "osd", "begins");
	BLKIN_INTEGER(&span, "bytes", 4096);
	expect(trace.get_info(), "hot path", "10.0.0.1", 6800, "osd", "bytes", "#4096");
}

static void a_scope_closes_its_span_once(const Endpoint &osd)
{
	const Trace served("served", &osd);
	blkin_endpoint disk;
	blkin_span call;

	CHECK(blkin_init_endpoint(&disk, "10.0.0.4", 4, "disk") == 0);
	CHECK(blkin_span_child(&call, served.get_info(), "call", &disk) == 0);
	try {
		const ZTracer::ScopedSpan answer(served, ZTracer::ScopedSpan::Serve);
		expect_event(served, "served", "10.0.0.1", 6800, "osd", SERVER_RECV);
		const ZTracer::ScopedSpan asked(call, ZTracer::ScopedSpan::Call);
		expect(asked.get_info(), "call", "10.0.0.4", 4, "disk", CLIENT_SEND, "!");
		BLKIN_INTEGER(answer, "bytes", 4096);
		expect(served.get_info(), "served", "10.0.0.1", 6800, "osd", "bytes", "#4096");
		throw 1;
	} catch (int) {
		expect(&call.trace.info, "call", "10.0.0.4", 4, "disk", CLIENT_RECV, "!");
		expect_event(served, "served", "10.0.0.1", 6800, "osd", SERVER_SEND);
	}
	ZTracer::ScopedSpan step(served.get_info(), "step", &disk);
	CHECK(step.get_info()->parent_span_id == served.get_info()->span_id);
	expect(step.get_info(), "step", "10.0.0.4", 4, "disk", "begin", "!");
	step.end();
	expect(step.get_info(), "step", "10.0.0.4", 4, "disk", "end", "!");
	BLKIN_EVENT(step, "afterwards");
	expect(step.get_info(), "step", "10.0.0.4", 4, "disk", "afterwards", "!");
	ZTracer::ScopedSpan here(served.get_info(), "here", &osd);
	expect(here.get_info(), "here", "10.0.0.1", 6800, "osd", "begin", "!");
	here.end();
	expect(here.get_info(), "here", "10.0.0.1", 6800, "osd", "end", "!");

	const ZTracer::ScopedSpan none(nullptr, "none", &disk), unsampled(Trace{});
	BLKIN_EVENT(none, "nothing");
	BLKIN_EVENT(unsampled, "nothing");
}

int main()
{
	Endpoint osd("10.0.0.1", 6800, "osd");

	CHECK(ztrace_init() == 0);
	CHECK(ztrace_status() == BLKIN_STATUS_TRACING);
	constants_are_the_same_everywhere();
	endpoints_say_who_records();
	copies_of_endpoints_stand_alone();
	traces_are_constructed(osd);
	traces_are_initialised_again(osd);
	copies_of_traces_stand_alone(osd);
	every_overload_records(osd);
	a_trace_is_a_span_for_the_macros(osd);
	a_scope_closes_its_span_once(osd);
	record_from_another_file(Trace("another file", &osd));
	return 0;
}
