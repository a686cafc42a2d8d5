// A second file of the same program, which includes the header as programs of the later branch do.
extern "C" {
#include <blkin/zipkin_c.h>
}
#include <blkin/ztracer.hpp>

#include "expect.h"

void record_from_another_file(const ZTracer::Trace &trace);

void record_from_another_file(const ZTracer::Trace &trace)
{
	trace.event(CLIENT_RECV);
	expect(trace.get_info(), "another file", "10.0.0.1", 6800, "osd", "cr", "!");
}
