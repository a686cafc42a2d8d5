// A program built with CMake. Records one span and prints its trace id.
#include <cinttypes>
#include <cstdio>
#include <blkin/ztracer.hpp>

int main()
{
	ZTracer::Endpoint here("127.0.0.1", 7002, "example-cmake");
	ZTracer::Trace trace("work", &here);

	trace.event(SERVER_RECV);
	trace.keyval("built with", "CMake");
	trace.event(SERVER_SEND);
	std::printf("%016" PRIx64 "\n", static_cast<uint64_t>(trace.get_info()->trace_id));
	return 0;
}
