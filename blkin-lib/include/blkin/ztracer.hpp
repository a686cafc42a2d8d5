// ztracer.hpp - tracing for C++ programs. Header-only, on top of zipkin_c.h, whose conventions hold here too:
// 0 or -EINVAL, which may be ignored, borrowed pointers, no locks, async-signal-safe recording, trace id 0 means
// "not sampled".
//
// There are two families of classes, which can be mixed in one program:
//   Endpoint, Trace              plain values that borrow their strings (Ceph)
//   ZTraceEndpoint, ZTrace       std::shared_ptr handles that own their strings (the original branch)
//
// What copies strings (copy_name() and its like, and the whole second family) allocates memory: it may throw, and is
// not async-signal-safe.
#ifndef BLKIN_ZTRACER_HPP
#define BLKIN_ZTRACER_HPP

#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "zipkin_c.h"

// The header of the original branch put these two names into the global namespace, and its programs rely on that. Define
// BLKIN_NO_GLOBAL_STRING if they collide with names of your program.
#ifndef BLKIN_NO_GLOBAL_STRING
using std::ostringstream;
using std::string;
#endif

namespace ZTracer {

using std::ostringstream;
using std::string;

// Refers to the C constants themselves, so that `using namespace ZTracer` does not make the names ambiguous.
using ::CLIENT_RECV;
using ::CLIENT_RECV_FRAGMENT;
using ::CLIENT_SEND;
using ::CLIENT_SEND_FRAGMENT;
using ::SERVER_RECV;
using ::SERVER_RECV_FRAGMENT;
using ::SERVER_SEND;
using ::SERVER_SEND_FRAGMENT;
using ::WIRE_RECV;
using ::WIRE_SEND;

// Calls blkin_init(): optional, always returns 0.
static inline int ztrace_init() { return blkin_init(); }
// Calls blkin_status(): whether this process is traced now, an enum blkin_state.
static inline int ztrace_status() { return blkin_status(); }

// A service and its address. Borrows ip and name (usually string literals); copy_ip() and copy_name() store copies
// that it owns. No thread may change an Endpoint while another records with it.
class Endpoint : private blkin_endpoint {
	string _ip;
	string _name;

	friend class Trace;
	friend class ScopedSpan;

	// A copy of an Endpoint owns what the original owns, and borrows what the original borrows.
	void assign(const Endpoint &from)
	{
		const bool own_ip = from.ip == from._ip.c_str();
		const bool own_name = from.name == from._name.c_str();

		_ip = from._ip;
		_name = from._name;
		ip = own_ip ? _ip.c_str() : from.ip;
		port = from.port;
		name = own_name ? _name.c_str() : from.name;
	}

public:
	Endpoint(const char *service) : Endpoint("0.0.0.0", 0, service) {}
	Endpoint(const char *address, int at_port, const char *service) : blkin_endpoint(), _ip(), _name()
	{
		blkin_init_endpoint(this, address, static_cast<int16_t>(at_port), service);
	}
	Endpoint(const Endpoint &from) : blkin_endpoint(), _ip(), _name() { assign(from); }
	const Endpoint &operator=(const Endpoint &from)
	{
		assign(from);
		return *this;
	}

	void copy_ip(const string &newip)
	{
		_ip = newip;
		ip = _ip.c_str();
	}
	void copy_name(const string &newname)
	{
		_name = newname;
		name = _name.c_str();
	}

	// Take over the other endpoint's ip and port. copy_... owns a copy of the ip, share_... borrows it.
	void copy_address_from(const Endpoint *endpoint)
	{
		if (endpoint->ip)
			copy_ip(endpoint->ip);
		else
			ip = nullptr;
		port = endpoint->port;
	}
	void share_address_from(const Endpoint *endpoint)
	{
		ip = endpoint->ip;
		port = endpoint->port;
	}
	void set_port(int p) { port = p; }
};

// A span. Borrows its name and endpoint; copy_name() stores a copy of a name that it owns. Recording (event, keyval) is
// const, and any number of threads may record at once.
class Trace : private blkin_trace {
	string _name;

	void assign(const Trace &from)
	{
		const bool own_name = from.name == from._name.c_str();

		_name = from._name;
		name = own_name ? _name.c_str() : from.name;
		info = from.info;
		endpoint = from.endpoint;
	}

	template <typename Value>
	using if_within_int64 =
	    typename std::enable_if<std::is_integral<Value>::value && !std::is_same<Value, int64_t>::value &&
				    std::numeric_limits<Value>::digits <= std::numeric_limits<int64_t>::digits>::type;

public:
	// A span that is not sampled: valid() is false.
	Trace() : blkin_trace(), _name() {}
	// A child of parent, at parent's endpoint if ep is NULL; not valid if neither is there. A new root if parent is NULL
	// or not valid: with sampling, part of a request that is not sampled may so become a trace of its own. To inherit that
	// it is not sampled, use a ScopedSpan, or pass parent->get_info() and child = true.
	Trace(const char *span, const Endpoint *ep, const Trace *parent = nullptr) : Trace() { init(span, ep, parent); }
	// The span with the ids *i or, if child is true, a child of it. Not valid if i is NULL, or if a child has no ep.
	Trace(const char *span, const Endpoint *ep, const blkin_trace_info *i, bool child = false) : Trace()
	{
		if (!i)
			return;
		if (child) {
			init(span, ep, i, true);
			return;
		}
		name = span;
		endpoint = ep;
		info = *i;
	}
	Trace(const Trace &from) : Trace() { assign(from); }
	const Trace &operator=(const Trace &from)
	{
		assign(from);
		return *this;
	}

	// True if the span is sampled.
	bool valid() const { return info.trace_id != 0; }
	operator bool() const { return valid(); }

	// Do what the constructors do, on an existing span. Return 0; -EINVAL in the cases below. The span is then not valid, or
	// is still what it was if it was its own parent; if i is its own get_info(), it has only its ids left.
	//   with a valid parent   neither ep nor parent has an endpoint
	//   with ids              i or ep is NULL, or span is NULL and child is false
	int init(const char *span, const Endpoint *ep, const Trace *parent = nullptr)
	{
		if (parent && parent->valid())
			return blkin_init_child(this, parent, ep, span);
		return blkin_init_new_trace(this, span, ep);
	}
	int init(const char *span, const Endpoint *ep, const blkin_trace_info *i, bool child = false)
	{
		if (child)
			return blkin_init_child_info(this, i, ep, span);
		return blkin_set_trace_properties(this, i, span, ep);
	}

	void copy_name(const string &newname)
	{
		_name = newname;
		name = _name.c_str();
	}

	// The span's ids, to send with a request. set_info() copies *i, which must not be NULL.
	const blkin_trace_info *get_info() const { return &info; }
	void set_info(const blkin_trace_info *i) { info = *i; }
	// Calls blkin_span_of(): prepares *span for BLKIN_EVENT, BLKIN_INTEGER and BLKIN_STRING, in code that runs for every
	// IO. *span borrows this span's endpoint and name, also a name that this span owns. Returns 0 or -EINVAL.
	int span_of(blkin_span *span) const { return blkin_span_of(span, this); }

	// Record key = value. ep NULL: the span's endpoint. Errors are not reported, as with BLKIN_KEYVAL_STRING.
	void keyval(const char *key, const char *val) const { BLKIN_KEYVAL_STRING(this, nullptr, key, val) }
	void keyval(const char *key, int64_t val) const { BLKIN_KEYVAL_INTEGER(this, nullptr, key, val) }
	void keyval(const char *key, const char *val, const Endpoint *ep) const
	{
		BLKIN_KEYVAL_STRING(this, ep, key, val)
	}
	void keyval(const char *key, int64_t val, const Endpoint *ep) const
	{
		BLKIN_KEYVAL_INTEGER(this, ep, key, val)
	}
	// For all other integer types whose values fit into int64_t. Without these a literal 0 could also be a pointer.
	template <typename Integer, typename = if_within_int64<Integer>> void keyval(const char *key, Integer val) const
	{
		BLKIN_KEYVAL_INTEGER(this, nullptr, key, val)
	}
	template <typename Integer, typename = if_within_int64<Integer>>
	void keyval(const char *key, Integer val, const Endpoint *ep) const
	{
		BLKIN_KEYVAL_INTEGER(this, ep, key, val)
	}

	// Record that event happens now. ep NULL: the span's endpoint. Errors are not reported.
	void event(const char *event) const { BLKIN_TIMESTAMP(this, nullptr, event) }
	void event(const char *event, const Endpoint *ep) const { BLKIN_TIMESTAMP(this, ep, event) }
};

// A span that is closed at the end of its scope, by a return or by an exception. The constructor records the opening
// event, the destructor the closing one. Converts to const blkin_span *:
//
//	ZTracer::ScopedSpan append(&request.info, "journal append", &osd);
//	BLKIN_INTEGER(append, "bytes", length);
//
// Borrows what the span borrows. Records nothing if the span is not sampled, or if an argument is missing.
class ScopedSpan {
public:
	enum Kind {
		Step,  // "begin" and "end": within this process
		Serve, // SERVER_RECV and SERVER_SEND: the side that answers a call
		Call   // CLIENT_SEND and CLIENT_RECV: the side that makes a call
	};

	// A child of the span with the ids *parent, made by blkin_span_child().
	ScopedSpan(const blkin_trace_info *parent, const char *name, const blkin_endpoint *ep, Kind kind = Step)
	    : _span(), _kind(kind), _is_open(blkin_span_child(&_span, parent, name, ep) == 0)
	{
		open();
	}
	ScopedSpan(const blkin_trace_info *parent, const char *name, const Endpoint *ep, Kind kind = Step)
	    : ScopedSpan(parent, name, static_cast<const blkin_endpoint *>(ep), kind)
	{
	}
	// Opens and closes an existing span.
	explicit ScopedSpan(const blkin_span &span, Kind kind = Step) : _span(span), _kind(kind), _is_open(true) { open(); }
	explicit ScopedSpan(const Trace &trace, Kind kind = Step)
	    : _span(), _kind(kind), _is_open(trace.span_of(&_span) == 0)
	{
		open();
	}
	~ScopedSpan() { end(); }
	ScopedSpan(const ScopedSpan &) = delete;
	ScopedSpan &operator=(const ScopedSpan &) = delete;

	// Closes the span now; the destructor then does not close it again. Later annotations are still recorded.
	void end()
	{
		if (_is_open)
			BLKIN_TIMESTAMP(&_span.trace, nullptr, one_of("end", SERVER_SEND, CLIENT_RECV))
		_is_open = false;
	}

	operator const blkin_span *() const { return &_span; }
	// The span's ids: to send with a request, or to make a child.
	const blkin_trace_info *get_info() const { return &_span.trace.info; }

private:
	blkin_span _span;
	const Kind _kind;
	bool _is_open;

	void open() const
	{
		if (_is_open)
			BLKIN_TIMESTAMP(&_span.trace, nullptr, one_of("begin", SERVER_RECV, CLIENT_SEND))
	}
	// Not a static table: its first use would take a lock, and a plug-in with such a table (STB_GNU_UNIQUE) is never
	// unloaded.
	const char *one_of(const char *step, const char *serve, const char *call) const
	{
		return _kind == Step ? step : _kind == Serve ? serve : call;
	}
};

// Return a copy of the text, which the caller frees with delete[].
static inline char *to_cstr(const string &s)
{
	char *copy = new char[s.length() + 1];

	std::memcpy(copy, s.c_str(), s.length() + 1);
	return copy;
}
static inline char *ostr_to_cstr(ostringstream &stream) { return to_cstr(stream.str()); }

class ZTraceEndpoint;
class ZTrace;

typedef std::shared_ptr<ZTraceEndpoint> ZTraceEndpointRef;
typedef std::shared_ptr<ZTrace> ZTraceRef;

// A service and its address. Owns its strings.
class ZTraceEndpoint {
	string _ip;
	string _name;
	struct blkin_endpoint ep;

	friend class ZTrace;

protected:
	struct blkin_endpoint *get_blkin_ep() { return &ep; }

public:
	ZTraceEndpoint(string ip, int port, string endpoint_name)
	    : _ip(std::move(ip)), _name(std::move(endpoint_name)), ep()
	{
		blkin_init_endpoint(&ep, _ip.c_str(), static_cast<int16_t>(port), _name.c_str());
	}
	ZTraceEndpoint(const ZTraceEndpoint &) = delete;
	ZTraceEndpoint &operator=(const ZTraceEndpoint &) = delete;
};

// A span that owns its name and keeps its endpoint alive. A child or joined span that lacks an argument (endpoint, parent
// or ids) is not sampled.
class ZTrace {
	string _name;
	ZTraceEndpointRef _ep;
	struct blkin_trace trace;

	static struct blkin_endpoint *raw(const ZTraceEndpointRef &ep) { return ep ? ep->get_blkin_ep() : nullptr; }

	int record_string(const string &key, const string &val, struct blkin_endpoint *ep)
	{
		struct blkin_annotation annot;
		const int error = blkin_init_string_annotation(&annot, key.c_str(), val.c_str(), ep);

		return error ? error : blkin_record(&trace, &annot);
	}
	int record_event(const string &event, struct blkin_endpoint *ep)
	{
		struct blkin_annotation annot;
		const int error = blkin_init_timestamp_annotation(&annot, event.c_str(), ep);

		return error ? error : blkin_record(&trace, &annot);
	}

protected:
	struct blkin_trace *get_blkin_trace() { return &trace; }

public:
	// A new root. ep may be empty.
	ZTrace(string name, ZTraceEndpointRef ep) : _name(std::move(name)), _ep(std::move(ep)), trace()
	{
		blkin_init_new_trace(&trace, _name.c_str(), raw(_ep));
	}
	// A child of t, at ep or, if ep is empty, at t's endpoint.
	ZTrace(string name, ZTraceRef t) : ZTrace(std::move(name), t, ZTraceEndpointRef()) {}
	ZTrace(string name, ZTraceRef t, ZTraceEndpointRef ep)
	    : _name(std::move(name)), _ep(ep || !t ? std::move(ep) : t->_ep), trace()
	{
		blkin_init_child(&trace, t ? &t->trace : nullptr, raw(_ep), _name.c_str());
	}
	// The span with the ids *info or, if child is true, a child of it.
	ZTrace(string name, ZTraceEndpointRef ep, struct blkin_trace_info *info, bool child = false)
	    : _name(std::move(name)), _ep(std::move(ep)), trace()
	{
		if (child)
			blkin_init_child_info(&trace, info, raw(_ep), _name.c_str());
		else
			blkin_set_trace_properties(&trace, info, _name.c_str(), raw(_ep));
	}
	ZTrace(const ZTrace &) = delete;
	ZTrace &operator=(const ZTrace &) = delete;

	ZTraceEndpointRef get_endpoint() { return _ep; }
	int get_trace_info(struct blkin_trace_info *info) { return blkin_get_trace_info(&trace, info); }
	int set_trace_info(struct blkin_trace_info *info) { return blkin_set_trace_info(&trace, info); }

	// Record at ep or, if there is none, at the span's endpoint. Return what blkin_record() returns.
	int keyval(string key, string val) { return record_string(key, val, nullptr); }
	int keyval(string key, string val, ZTraceEndpointRef ep) { return record_string(key, val, raw(ep)); }
	int event(string event) { return record_event(event, nullptr); }
	int event(string event, ZTraceEndpointRef ep) { return record_event(event, raw(ep)); }
};

static inline ZTraceEndpointRef create_ZTraceEndpoint(string ip, int port, string name)
{
	return std::make_shared<ZTraceEndpoint>(std::move(ip), port, std::move(name));
}
static inline ZTraceRef create_ZTrace(string name, ZTraceEndpointRef ep)
{
	return std::make_shared<ZTrace>(std::move(name), std::move(ep));
}
static inline ZTraceRef create_ZTrace(string name, ZTraceRef t)
{
	return std::make_shared<ZTrace>(std::move(name), std::move(t));
}
static inline ZTraceRef create_ZTrace(string name, ZTraceRef t, ZTraceEndpointRef ep)
{
	return std::make_shared<ZTrace>(std::move(name), std::move(t), std::move(ep));
}
static inline ZTraceRef create_ZTrace(string name, ZTraceEndpointRef ep, struct blkin_trace_info *info,
				      bool child = false)
{
	return std::make_shared<ZTrace>(std::move(name), std::move(ep), info, child);
}

} // namespace ZTracer

#endif // BLKIN_ZTRACER_HPP
