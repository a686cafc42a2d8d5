/* load.c - threads that each put, get and delete their own objects, and know what each object must contain. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client.h"

struct object_state {
	uint64_t acked; /* generation that the store acknowledged; 0: absent */
	uint64_t next;  /* the next generation to write */
	bool uncertain; /* a write failed and may or may not have been stored; the object is not used any more */
	uint64_t maybe; /* generation of that write */
};

struct load {
	const struct client_options *options;
	struct timespec start;
	atomic_uint_fast64_t started;
	atomic_bool failed;
};

struct worker {
	struct load *load;
	unsigned id;
	pthread_t thread;
	struct connection connection;
	struct object_state *objects;
	unsigned char *data;
	uint64_t random;
	struct load_result result;
};

static atomic_bool stop_asked; /* lock-free, so a handler may set it */

static void ask_to_stop(int signal_number)
{
	(void)signal_number;
	atomic_store(&stop_asked, true);
}

static double since(const struct timespec *start)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) / 1e9;
}

static unsigned roll(struct worker *worker, unsigned sides)
{
	worker->random ^= worker->random << 13;
	worker->random ^= worker->random >> 7;
	worker->random ^= worker->random << 17;
	return (unsigned)(worker->random % sides);
}

static void object_name(const struct worker *worker, unsigned object, char name[MAX_NAME_BYTES + 1])
{
	snprintf(name, MAX_NAME_BYTES + 1, "%s-t%02u-o%06u", worker->load->options->prefix, worker->id, object);
}

static void complain(struct worker *worker, const char *what, const char *name, int rc)
{
	fprintf(stderr, "objstore-client: failed to %s %s: %s\n", what, name, strerror(-rc));
	worker->result.errors++;
	if (!worker->load->options->keep_going || worker->connection.broken)
		atomic_store(&worker->load->failed, true);
}

static int timed(struct worker *worker, enum op_code op, const char *name, uint32_t len, struct msg *reply,
		 struct histogram *histogram)
{
	struct timespec start;
	int rc;

	clock_gettime(CLOCK_MONOTONIC, &start);
	rc = connection_run(&worker->connection, op, name, worker->data, len, reply);
	if (rc == 0)
		histogram_add(histogram, (uint64_t)(since(&start) * 1e6));
	return rc;
}

static void write_object(struct worker *worker, enum op_code op, struct object_state *object, const char *name)
{
	uint64_t generation = op == OP_PUT ? ++object->next : 0;
	uint32_t len = op == OP_PUT ? worker->load->options->size : 0;
	struct histogram *histogram = op == OP_PUT ? &worker->result.put : &worker->result.delete;
	struct msg reply;
	int rc;

	if (op == OP_PUT)
		content_fill(worker->data, len, name, generation);
	rc = timed(worker, op, name, len, &reply, histogram);
	if (rc == 0) {
		object->acked = generation;
		msg_clear(&reply);
	} else {
		object->uncertain = true;
		object->maybe = generation;
		complain(worker, op == OP_PUT ? "put" : "delete", name, rc);
	}
}

static void read_object(struct worker *worker, const struct object_state *object, const char *name)
{
	struct msg reply;
	int rc = timed(worker, OP_GET, name, 0, &reply, &worker->result.get);

	if (rc != 0) {
		complain(worker, "get", name, rc);
		return;
	}
	if (reply.data_len != worker->load->options->size ||
	    !content_is(reply.data, reply.data_len, name, object->acked)) {
		fprintf(stderr, "objstore-client: %s does not contain what was put\n", name);
		worker->result.wrong++;
		atomic_store(&worker->load->failed, true);
	}
	msg_clear(&reply);
}

static enum op_code choose(struct worker *worker, const struct object_state *object)
{
	const struct client_options *o = worker->load->options;
	unsigned side = roll(worker, o->put_share + o->get_share + o->delete_share);

	if (object->acked == 0 || side < o->put_share)
		return OP_PUT; /* an absent object can only be put */
	return side < o->put_share + o->get_share ? OP_GET : OP_DELETE;
}

static void one_operation(struct worker *worker)
{
	unsigned n = roll(worker, worker->load->options->objects);
	struct object_state *object = &worker->objects[n];
	char name[MAX_NAME_BYTES + 1];
	enum op_code op;

	if (object->uncertain)
		return;
	object_name(worker, n, name);
	op = choose(worker, object);
	if (op == OP_GET)
		read_object(worker, object, name);
	else
		write_object(worker, op, object, name);
}

/* When an operation is due, in seconds from the start. */
static double due(const struct load *load, uint64_t number)
{
	return load->options->rate > 0 ? (double)number / load->options->rate : 0;
}

static void keep_pace(const struct load *load, uint64_t number)
{
	double wait = due(load, number) - since(&load->start);
	struct timespec t;

	if (wait <= 0)
		return;
	t = (struct timespec){.tv_sec = (time_t)wait, .tv_nsec = (long)((wait - (double)(time_t)wait) * 1e9)};
	nanosleep(&t, NULL);
}

/* The number of the next operation, counted from 0 over all threads; false: the load ends. */
static bool next_operation(struct load *load, uint64_t *number)
{
	const struct client_options *o = load->options;

	*number = atomic_fetch_add(&load->started, 1);
	if (atomic_load(&stop_asked) || atomic_load(&load->failed) || (o->count > 0 && *number >= o->count))
		return false;
	if (o->seconds > 0 && due(load, *number) >= o->seconds)
		return false;
	keep_pace(load, *number);
	return o->seconds <= 0 || since(&load->start) < o->seconds;
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	uint64_t number;

	while (next_operation(worker->load, &number))
		one_operation(worker);
	return NULL;
}

static int prepare(struct worker *workers, struct load *load)
{
	const struct client_options *o = load->options;

	for (unsigned n = 0; n < o->threads; n++) {
		struct worker *worker = &workers[n];
		int rc;

		worker->load = load;
		worker->id = n;
		worker->random = o->seed * 0x9E3779B97F4A7C15u + n + 1;
		worker->objects = calloc(o->objects, sizeof *worker->objects);
		worker->data = malloc(o->size);
		rc = worker->objects && worker->data ? connection_open(&worker->connection, o) : -ENOMEM;
		if (rc != 0) {
			fprintf(stderr, "objstore-client: failed to connect to %s: %s\n", o->gateway, strerror(-rc));
			return rc;
		}
	}
	return 0;
}

static void collect(struct load_result *total, const struct worker *worker)
{
	histogram_merge(&total->put, &worker->result.put);
	histogram_merge(&total->get, &worker->result.get);
	histogram_merge(&total->delete, &worker->result.delete);
	total->errors += worker->result.errors;
	total->wrong += worker->result.wrong;
}

/* One line per object: name, generation acknowledged, generation that may be there instead or -, size. */
static int write_acked_log(const struct worker *workers, const struct client_options *o)
{
	FILE *file = fopen(o->acked_log, "w");
	char name[MAX_NAME_BYTES + 1];
	int rc;

	if (!file)
		return -errno;
	for (unsigned n = 0; n < o->threads; n++)
		for (unsigned k = 0; k < o->objects; k++) {
			const struct object_state *object = &workers[n].objects[k];
			if (object->next == 0)
				continue;
			object_name(&workers[n], k, name);
			if (object->uncertain)
				fprintf(file, "%s %ju %ju %u\n", name, (uintmax_t)object->acked, (uintmax_t)object->maybe,
					o->size);
			else
				fprintf(file, "%s %ju - %u\n", name, (uintmax_t)object->acked, o->size);
		}
	rc = ferror(file) ? -EIO : 0;
	return fclose(file) == 0 ? rc : -errno;
}

static int finish(struct worker *workers, struct load *load)
{
	const struct client_options *o = load->options;
	static struct load_result total;
	int rc = 0;

	for (unsigned n = 0; n < o->threads; n++) {
		pthread_join(workers[n].thread, NULL);
		connection_close(&workers[n].connection);
		collect(&total, &workers[n]);
	}
	total.seconds = since(&load->start);
	report_load(o, &total);
	if (o->acked_log)
		rc = write_acked_log(workers, o);
	if (rc != 0)
		fprintf(stderr, "objstore-client: failed to write %s: %s\n", o->acked_log, strerror(-rc));
	return rc != 0 || total.wrong > 0 || (total.errors > 0 && !o->keep_going);
}

int load_run(const struct client_options *options)
{
	struct load load = {.options = options};
	struct worker *workers = calloc(options->threads, sizeof *workers);
	int rc = workers ? prepare(workers, &load) : -ENOMEM;

	if (rc != 0)
		exit(1);
	signal(SIGINT, ask_to_stop);
	signal(SIGTERM, ask_to_stop);
	clock_gettime(CLOCK_MONOTONIC, &load.start);
	for (unsigned n = 0; n < options->threads; n++)
		if (pthread_create(&workers[n].thread, NULL, work, &workers[n]) != 0) {
			fputs("objstore-client: failed to start a thread\n", stderr);
			exit(1);
		}
	rc = finish(workers, &load);
	for (unsigned n = 0; n < options->threads; n++) {
		free(workers[n].objects);
		free(workers[n].data);
	}
	free(workers);
	return rc;
}
