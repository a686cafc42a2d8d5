/*
 * Makes records for an instruction counter: count CASE makes 10,000 records of one kind within measured(), after as many
 * outside it. CASE "none" runs the empty loop.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zipkin_c.h"

enum { RECORDS = 10000, PLACES = 200 };

static struct blkin_endpoint endpoint;
/* The events of a program with many parts, each text at an address of its own. */
static char said[PLACES][16];
static struct blkin_trace trace, unsampled;
static struct blkin_span span;

static void none(long i) { (void)i; }
static void event(long i) { (void)i; BLKIN_EVENT(&span, "Enqueued op"); }
static void integer(long i) { BLKIN_INTEGER(&span, "bytes", i); }
static void string(long i) { (void)i; BLKIN_STRING(&span, "Object", "rbd_data.1"); }
static void legacy_event(long i) { (void)i; BLKIN_TIMESTAMP(&trace, &endpoint, "Enqueued op"); }
static void legacy_many(long i) { BLKIN_TIMESTAMP(&trace, &endpoint, said[i % PLACES]); }
static void legacy_integer(long i) { BLKIN_KEYVAL_INTEGER(&trace, &endpoint, "bytes", i); }
static void legacy_string(long i) { (void)i; BLKIN_KEYVAL_STRING(&trace, &endpoint, "Object", "rbd_data.1"); }
static void not_sampled(long i) { (void)i; BLKIN_TIMESTAMP(&unsampled, &endpoint, "Enqueued op"); }

static const struct {
	const char *name;
	void (*one)(long);
} cases[] = {
	{ "none", none }, { "event", event }, { "integer", integer }, { "string", string },
	{ "legacy-event", legacy_event }, { "legacy-many", legacy_many }, { "legacy-integer", legacy_integer },
	{ "legacy-string", legacy_string }, { "legacy-unsampled", not_sampled },
};

static void warm_up(void (*one)(long))
{
	for (long i = 0; i < RECORDS; i++)
		one(i);
}

/* The counter looks for this function's name, so it must not be folded into the one above. */
__attribute__((noinline, noipa)) void measured(void (*one)(long))
{
	for (long i = 0; i < RECORDS; i++)
		one(i);
}

int main(int argc, char **argv)
{
	blkin_init_endpoint(&endpoint, "10.0.0.1", 6800, "count");
	blkin_init_new_trace(&trace, "count", &endpoint);
	for (int i = 0; i < PLACES; i++)
		snprintf(said[i], sizeof said[i], "event %d", i);
	blkin_span_of(&span, &trace);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (argc == 2 && strcmp(argv[1], cases[i].name) == 0) {
			warm_up(cases[i].one);
			measured(cases[i].one);
			return 0;
		}
	}
	return 2;
}
