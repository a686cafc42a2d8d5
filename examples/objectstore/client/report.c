/* report.c - the report of a load, as text or as JSON. */
#include <inttypes.h>

#include "client.h"

static double mean(const struct histogram *h)
{
	return h->total ? (double)h->sum_us / (double)h->total : 0;
}

static void json_latency(const char *name, const struct histogram *h)
{
	printf(", \"%s\": {\"count\": %" PRIu64 ", \"mean_us\": %.1f, \"p50_us\": %" PRIu64 ", \"p90_us\": %" PRIu64
	       ", \"p99_us\": %" PRIu64 ", \"p999_us\": %" PRIu64 ", \"max_us\": %" PRIu64 "}",
	       name, h->total, mean(h), histogram_percentile(h, 50), histogram_percentile(h, 90),
	       histogram_percentile(h, 99), histogram_percentile(h, 99.9), h->max_us);
}

static void text_latency(const char *name, const struct histogram *h)
{
	if (h->total == 0)
		return;
	printf("%-7s %9" PRIu64 " ops  mean %8.1f us  p50 %7" PRIu64 "  p90 %7" PRIu64 "  p99 %7" PRIu64
	       "  p99.9 %7" PRIu64 "  max %7" PRIu64 "\n",
	       name, h->total, mean(h), histogram_percentile(h, 50), histogram_percentile(h, 90),
	       histogram_percentile(h, 99), histogram_percentile(h, 99.9), h->max_us);
}

void report_load(const struct client_options *options, const struct load_result *r)
{
	uint64_t operations = r->put.total + r->get.total + r->delete.total;
	double bytes = (double)(r->put.total + r->get.total) * options->size;
	double seconds = r->seconds > 0 ? r->seconds : 1e-9;

	if (options->json) {
		printf("{\"operations\": %" PRIu64 ", \"seconds\": %.6f, \"ops_per_second\": %.1f, "
		       "\"bytes_per_second\": %.0f, \"errors\": %" PRIu64 ", \"wrong\": %" PRIu64,
		       operations, r->seconds, (double)operations / seconds, bytes / seconds, r->errors, r->wrong);
		json_latency("put", &r->put);
		json_latency("get", &r->get);
		json_latency("delete", &r->delete);
		printf(", \"roots\": %" PRIu64 ", \"annotations\": %" PRIu64 "}\n", trace_roots(), trace_annotations());
		return;
	}
	printf("%" PRIu64 " operations in %.2f s: %.1f ops/s, %.1f KiB/s; %" PRIu64 " errors, %" PRIu64 " wrong\n",
	       operations, r->seconds, (double)operations / seconds, bytes / seconds / 1024, r->errors, r->wrong);
	text_latency("put", &r->put);
	text_latency("get", &r->get);
	text_latency("delete", &r->delete);
	printf("traces begun here: %" PRIu64 ", annotations made here: %" PRIu64 "\n", trace_roots(),
	       trace_annotations());
}
