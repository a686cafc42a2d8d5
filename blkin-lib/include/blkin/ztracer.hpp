// ztracer.hpp - tracing for C++ programs. Header-only over zipkin_c.h, whose conventions hold here too:
// 0 or -EINVAL, borrowed pointers, no locks, trace id 0 means "not sampled".
//
// Two families live side by side and can be mixed:
//   Endpoint, Trace              plain values that borrow their strings (Ceph)
//   ZTraceEndpoint, ZTrace       std::shared_ptr handles that own their strings (the original branch)
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

// The original branch's header brought these two names along, and its programs use them. Define
// BLKIN_NO_GLOBAL_STRING if they collide with names of yours.
#ifndef BLKIN_NO_GLOBAL_STRING
using std::ostringstream;
using std::string;
#endif

namespace ZTracer {

using std::ostringstream;
using std::string;

// The C constants themselves, so that `using namespace ZTracer` makes nothing ambiguous.
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

// blkin_init(): optional, always 0.
static inline int ztrace_init() { return blkin_init(); }

// A service and its address. Borrows ip and name (string literals, as a rule); copy_ip() and copy_name() make
// it own them. Not to be changed by one thread while another records with it.
class Endpoint : private blkin_endpoint {
	string _ip;
	string _name;

	friend class Trace;
	friend class ScopedSpan;

	// Copies of an Endpoint own what the original owned and borrow what it borrowed.
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

	// The other endpoint's ip and port: as a copy, or borrowed from it.
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

// A span. Borrows its name and endpoint; copy_name() makes it own the name. Recording (event, keyval) is const
// and may be done by any number of threads at once.
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
	// Not sampled, valid() is false.
	Trace() : blkin_trace(), _name() {}
	// A child of parent, with parent's endpoint if ep is NULL; a new root if parent is NULL or not valid.
	Trace(const char *span, const Endpoint *ep, const Trace *parent = nullptr) : Trace() { init(span, ep, parent); }
	// The span with these ids (child: a child of it).
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

	// The constructors' work on an existing span. -EINVAL leaves it as it was: ep or i is NULL, or span if it is to be no
	// child (with ids), or neither ep nor parent has an endpoint (child).
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

	const blkin_trace_info *get_info() const { return &info; }
	void set_info(const blkin_trace_info *i) { info = *i; }
	// blkin_span_of(): for BLKIN_EVENT, BLKIN_INTEGER and BLKIN_STRING in code that runs for every IO. *span borrows
	// this span's name and endpoint, a copied name too.
	int span_of(blkin_span *span) const { return blkin_span_of(span, this); }

	// Record key = value. ep NULL: the span's own endpoint.
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
	// Other integers that int64_t holds: without these a literal 0 would as well be a pointer.
	template <typename Integer, typename = if_within_int64<Integer>> void keyval(const char *key, Integer val) const
	{
		BLKIN_KEYVAL_INTEGER(this, nullptr, key, val)
	}
	template <typename Integer, typename = if_within_int64<Integer>>
	void keyval(const char *key, Integer val, const Endpoint *ep) const
	{
		BLKIN_KEYVAL_INTEGER(this, ep, key, val)
	}

	// Record that event happens now.
	void event(const char *event) const { BLKIN_TIMESTAMP(this, nullptr, event) }
	void event(const char *event, const Endpoint *ep) const { BLKIN_TIMESTAMP(this, ep, event) }
};

// A span that is closed when this leaves its scope, by return or by an exception. It records the first event of the span when it is
// made, and is a const blkin_span * wherever one is wanted:
//
//	ZTracer::ScopedSpan append(&request.info, "journal append", &osd);
//	BLKIN_INTEGER(append, "bytes", length);
//
// Borrows what the span borrows. A span that is not sampled, or that cannot be made of these arguments, records nothing.
class ScopedSpan {
public:
	enum Kind {
		Step,  // "begin" and "end": within this process
		Serve, // SERVER_RECV and SERVER_SEND: for who answers a call
		Call   // CLIENT_SEND and CLIENT_RECV: for who makes a call
	};

	// A child of the span with these ids, as blkin_span_child() begins it.
	ScopedSpan(const blkin_trace_info *parent, const char *name, const blkin_endpoint *ep, Kind kind = Step)
	    : _span(), _kind(kind), _is_open(blkin_span_child(&_span, parent, name, ep) == 0)
	{
		open();
	}
	ScopedSpan(const blkin_trace_info *parent, const char *name, const Endpoint *ep, Kind kind = Step)
	    : ScopedSpan(parent, name, static_cast<const blkin_endpoint *>(ep), kind)
	{
	}
	// The rest of a span that there is already.
	explicit ScopedSpan(const blkin_span &span, Kind kind = Step) : _span(span), _kind(kind), _is_open(true) { open(); }
	explicit ScopedSpan(const Trace &trace, Kind kind = Step)
	    : _span(), _kind(kind), _is_open(trace.span_of(&_span) == 0)
	{
		open();
	}
	~ScopedSpan() { end(); }
	ScopedSpan(const ScopedSpan &) = delete;
	ScopedSpan &operator=(const ScopedSpan &) = delete;

	// Closes the span now. It can still be annotated, and is not closed again.
	void end()
	{
		if (_is_open)
			BLKIN_TIMESTAMP(&_span.trace, nullptr, one_of("end", SERVER_SEND, CLIENT_RECV))
		_is_open = false;
	}

	operator const blkin_span *() const { return &_span; }
	// To be sent along, or the parent of another.
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
	// Not from a static table: its first use would take a lock, and a plug-in that has one is never unloaded (STB_GNU_UNIQUE).
	const char *one_of(const char *step, const char *serve, const char *call) const
	{
		return _kind == Step ? step : _kind == Serve ? serve : call;
	}
};

// A copy of the text, to be freed with delete[].
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

// A service and its address, with strings of its own.
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

// A span with a name of its own; keeps its endpoint alive.
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
	// A new root.
	ZTrace(string name, ZTraceEndpointRef ep) : _name(std::move(name)), _ep(std::move(ep)), trace()
	{
		blkin_init_new_trace(&trace, _name.c_str(), raw(_ep));
	}
	// A child of t, at ep or, without one, at t's endpoint.
	ZTrace(string name, ZTraceRef t) : ZTrace(std::move(name), t, ZTraceEndpointRef()) {}
	ZTrace(string name, ZTraceRef t, ZTraceEndpointRef ep)
	    : _name(std::move(name)), _ep(ep || !t ? std::move(ep) : t->_ep), trace()
	{
		blkin_init_child(&trace, t ? &t->trace : nullptr, raw(_ep), _name.c_str());
	}
	// The span with these ids (child: a child of it).
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

	// Record, at the span's endpoint or at ep. What blkin_record() returns.
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
