/* BlkKin's calls, and readings of the clock. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include <zipkin_c.h>
#include "bench.h"

/* REQUESTS: each burst annotates as many requests as a busy daemon has open at a time. */
enum { REQUESTS = 64, TEXTS = 64, PLACES = 200, PARTS = 100, STEPS = 10 };

static struct blkin_endpoint endpoint;
static struct blkin_trace traces[REQUESTS], root, child, unsampled;
static struct blkin_annotation prepared;
static struct blkin_span spans[REQUESTS], unsampled_span;
#define SPAN (&spans[i % REQUESTS])
#define TRACE (&traces[i % REQUESTS])
static volatile uint64_t sink;
static char long_text[LONG_BYTES + 1];
/* The event texts of a daemon with many components, each at its own address. */
static char said[PLACES][16];
/* The components. Each is an endpoint of its own, as each placement group is in Ceph. */
static struct part { char name[16]; struct blkin_endpoint endpoint; struct blkin_trace trace; } parts[PARTS];

/*
 * Texts that were never used before: eight letters in the middle count up. They are written half a round ahead,
 * so that the copy does not wait for the store. Each thread has its own.
 */
static __thread struct text { char name[24], endpoint[24], event[24]; } texts[TEXTS];
static __thread struct blkin_endpoint text_endpoints[TEXTS];
static __thread struct blkin_trace text_traces[TEXTS];
static __thread uint64_t written;

/* Eight letters from a to p that stand for the lowest 32 bits. */
static inline uint64_t letters(uint64_t number)
{
	number &= 0xffffffff;
	number = (number | number << 16) & 0x0000ffff0000ffffull;
	number = (number | number << 8) & 0x00ff00ff00ff00ffull;
	number = (number | number << 4) & 0x0f0f0f0f0f0f0f0full;
	return number + 0x6161616161616161ull;
}

static void begin_texts(void)
{
	/* Each thread begins at another number. */
	written = ((uint64_t)time(NULL) + (uint64_t)gettid()) << 16;
	for (int i = 0; i < TEXTS; i++) {
		strcpy(texts[i].name, "Maaaaaaaaa12");
		strcpy(texts[i].endpoint, "osd.aaaaaaaa");
		strcpy(texts[i].event, "Enquaaaaaaaaed op");
		blkin_init_endpoint(&text_endpoints[i], "10.0.0.1", 6800, texts[i].endpoint);
		blkin_init_new_trace(&text_traces[i], texts[i].name, &text_endpoints[i]);
	}
}

static inline void new_texts(int i)
{
	if (__builtin_expect(!written, 0))
		begin_texts();
	struct text *text = &texts[(i + TEXTS / 2) % TEXTS];
	uint64_t digits = letters(++written);

	memcpy(text->name + 4, &digits, sizeof digits);
	memcpy(text->endpoint + 4, &digits, sizeof digits);
	memcpy(text->event + 4, &digits, sizeof digits);
}

static void new_requests(void)
{
	for (int i = 0; i < REQUESTS; i++) {
		blkin_init_new_trace(&traces[i], "Main", &endpoint);
		blkin_span_of(&spans[i], &traces[i]);
		text_traces[i].info = traces[i].info;
	}
	root = traces[0];
}

void bench_setup(void)
{
	blkin_init_endpoint(&endpoint, "10.0.0.1", 6800, "osd.0");
	blkin_init_new_trace(&unsampled, "Main", &endpoint);
	memset(&unsampled.info, 0, sizeof unsampled.info);
	begin_texts();
	memset(long_text, 'x', LONG_BYTES);
	for (int i = 0; i < PLACES; i++)
		snprintf(said[i], sizeof said[i], "event %d", i);
	for (struct part *part = parts; part < parts + PARTS; part++) {
		snprintf(part->name, sizeof part->name, "pg 1.%d", (int)(part - parts));
		blkin_init_endpoint(&part->endpoint, "10.0.0.1", 6800, part->name);
		blkin_init_new_trace(&part->trace, "Main", &part->endpoint);
	}
	blkin_init_timestamp_annotation(&prepared, "Enqueued op", &endpoint);
	blkin_span_of(&unsampled_span, &unsampled);
	new_requests();
}

BENCH_CASE(bare_loop, )
BENCH_CASE(rdtsc, sink = __rdtsc())
BENCH_CASE(clock_read, struct timespec now; clock_gettime(CLOCK_MONOTONIC, &now); sink = (uint64_t)now.tv_nsec)

BENCH_CASE(event, BLKIN_EVENT(SPAN, "Enqueued op"))
BENCH_CASE(integer, BLKIN_INTEGER(SPAN, "bytes", i))
BENCH_CASE(string, BLKIN_STRING(SPAN, "Object", "rbd_data.1"))
BENCH_CASE(string_long, BLKIN_STRING(SPAN, "Object", long_text))
BENCH_CASE(event_unsampled, BLKIN_EVENT(&unsampled_span, "Enqueued op"))

BENCH_CASE(legacy_event, BLKIN_TIMESTAMP(TRACE, &endpoint, "Enqueued op"))
BENCH_CASE(record, blkin_record(TRACE, &prepared))
/* Called as after dlsym(): nothing of the header is inlined. */
static int (*volatile found_record)(const struct blkin_trace *, const struct blkin_annotation *) = blkin_record;
BENCH_CASE(record_found, found_record(TRACE, &prepared))
BENCH_CASE(legacy_long, BLKIN_TIMESTAMP(TRACE, &endpoint, "Enqueued op in the write queue"))
BENCH_CASE(legacy_many, BLKIN_TIMESTAMP(TRACE, &endpoint, said[i % PLACES]))
BENCH_CASE(legacy_parts,
	   struct part *part = &parts[i / STEPS % PARTS];
	   BLKIN_TIMESTAMP(&part->trace, &part->endpoint, said[i % STEPS]))
BENCH_CASE(legacy_integer, BLKIN_KEYVAL_INTEGER(TRACE, &endpoint, "bytes", i))
BENCH_CASE(legacy_string, BLKIN_KEYVAL_STRING(TRACE, &endpoint, "Object", "rbd_data.1"))
BENCH_CASE(legacy_unsampled, BLKIN_TIMESTAMP(&unsampled, &endpoint, "Enqueued op"))
BENCH_CASE(dynamic_texts, new_texts(i))
BENCH_CASE(dynamic_event,
	   new_texts(i);
	   BLKIN_TIMESTAMP(&text_traces[i % TEXTS], &text_endpoints[i % TEXTS], texts[i % TEXTS].event))
BENCH_CASE(new_root, blkin_init_new_trace(&root, "Main", &endpoint))
/* All that a program does up to its first annotation; for -f, which sets nothing up before. */
BENCH_CASE(first_request,
	   blkin_init_endpoint(&endpoint, "10.0.0.1", 6800, "osd.0");
	   blkin_init_new_trace(&root, "Main", &endpoint);
	   BLKIN_TIMESTAMP(&root, &endpoint, "Enqueued op"))
BENCH_CASE(new_child, blkin_init_child(&child, TRACE, &endpoint, "Journal access"))

const struct bench_case bench_cases[] = {
	{ "bare-loop", bare_loop, NULL },
	{ "rdtsc", rdtsc, NULL },
	{ "clock_gettime", clock_read, NULL },
	{ "event", event, new_requests },
	{ "integer", integer, new_requests },
	{ "string", string, new_requests },
	{ "string-long", string_long, new_requests },
	{ "event-unsampled", event_unsampled, NULL },
	{ "legacy-event", legacy_event, new_requests },
	{ "record", record, new_requests },
	{ "record-found", record_found, new_requests },
	{ "legacy-long", legacy_long, new_requests },
	{ "legacy-many", legacy_many, new_requests },
	{ "legacy-parts", legacy_parts, NULL },
	{ "legacy-integer", legacy_integer, new_requests },
	{ "legacy-string", legacy_string, new_requests },
	{ "legacy-unsampled", legacy_unsampled, NULL },
	{ "dynamic-texts", dynamic_texts, NULL },
	{ "dynamic-event", dynamic_event, new_requests },
	{ "root", new_root, NULL },
	{ "child", new_child, NULL },
	{ "first-request", first_request, NULL },
	{ NULL, NULL, NULL },
};
