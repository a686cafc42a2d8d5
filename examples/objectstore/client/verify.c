/* verify.c - reads everything that the store acknowledged to an earlier load. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

struct expectation {
	char name[MAX_NAME_BYTES + 1];
	uint64_t acked, maybe;
	bool uncertain;
	uint32_t size;
};

static bool parse(const char *line, struct expectation *e)
{
	char maybe[32];

	if (sscanf(line, "%200s %" SCNu64 " %31s %" SCNu32, e->name, &e->acked, maybe, &e->size) != 4)
		return false;
	e->uncertain = strcmp(maybe, "-") != 0;
	e->maybe = e->uncertain ? strtoull(maybe, NULL, 10) : 0;
	return true;
}

static bool is_generation(const struct msg *reply, int rc, const struct expectation *e, uint64_t generation)
{
	if (generation == 0)
		return rc == -ENOENT;
	return rc == 0 && reply->data_len == e->size && content_is(reply->data, reply->data_len, e->name, generation);
}

static bool check(struct connection *connection, const struct expectation *e)
{
	struct msg reply = {0};
	int rc = connection_run(connection, OP_GET, e->name, NULL, 0, &reply);
	bool good = is_generation(&reply, rc, e, e->acked) || (e->uncertain && is_generation(&reply, rc, e, e->maybe));

	if (!good)
		fprintf(stderr, "objstore-client: %s is not generation %" PRIu64 ", which was acknowledged: %s\n", e->name,
			e->acked, rc == 0 ? "other content" : strerror(-rc));
	if (rc == 0)
		msg_clear(&reply);
	return good;
}

int verify_run(const struct client_options *options)
{
	struct connection connection;
	struct expectation e;
	uint64_t checked = 0, wrong = 0;
	char line[512];
	FILE *file = fopen(options->acked_log, "r");
	int rc = file ? connection_open(&connection, options) : -errno;

	if (rc != 0) {
		fprintf(stderr, "objstore-client: failed to open %s: %s\n", file ? options->gateway : options->acked_log,
			strerror(-rc));
		if (file)
			fclose(file);
		return 1;
	}
	while (fgets(line, sizeof line, file)) {
		bool good = parse(line, &e) && check(&connection, &e);
		checked++;
		wrong += !good;
	}
	fclose(file);
	connection_close(&connection);
	printf(options->json ? "{\"checked\": %" PRIu64 ", \"wrong\": %" PRIu64 "}\n"
			     : "%" PRIu64 " objects checked, %" PRIu64 " wrong\n",
	       checked, wrong);
	return wrong > 0 || checked == 0;
}
