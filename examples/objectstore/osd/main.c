/* main.c - objstore-osd: options, start, and a stop that leaves the journal empty. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "atomic_file.h"
#include "log.h"
#include "options.h"
#include "osd.h"
#include "stop_signal.h"

static const char help[] =
	"objstore-osd - keeps objects: a journal for durability, a file for each object\n"
	"\n"
	"  objstore-osd --id 0 --dir /var/lib/objstore/osd-0 --ready-file /run/objstore/osd-0\n"
	"\n"
	"  --id N                  number of this OSD: 0 to 15. Each OSD's directory has its own number\n"
	"  --dir DIR               directory for all its data; made if it is missing. An empty directory is\n"
	"                          filled from the other replicas once the gateway knows this OSD\n"
	"  --host ADDRESS          listen here (127.0.0.1)\n"
	"  --port N                and on this port (0: a free one; see --ready-file)\n"
	"  --ready-file FILE       write ADDRESS:PORT here once connections are accepted; the gateway's\n"
	"                          --osd 0=@FILE reads it\n"
	"  --op-threads N          threads that take operations out of the dispatch queue (2)\n"
	"  --filestore-threads N   threads that write object files (2)\n"
	"  --journal-segment-mib N size of the journal's files (16)\n"
	"  --delay-journal-us N    sleep before each journal write: imitates a slow disk, to try out tracing (0)\n"
	"\n"
	"A write is acknowledged when its journal entry is on the disk (O_DSYNC) here and on the replica; after\n"
	"kill -9 the journal is replayed at the next start. SIGTERM and SIGINT stop it cleanly.\n"
	"Tracing needs no option: the trace info arrives in the messages. BLKIN_* variables work as usual.\n"
	"Exit status: 0 stopped, 1 failed (the reason is on stderr), 2 wrong usage.\n";

enum { OPT_ID = 256, OPT_DIR, OPT_HOST, OPT_PORT, OPT_READY, OPT_OPS, OPT_FILESTORE, OPT_SEGMENT, OPT_DELAY, OPT_HELP };

static const struct option long_options[] = {
	{"id", required_argument, NULL, OPT_ID},
	{"dir", required_argument, NULL, OPT_DIR},
	{"host", required_argument, NULL, OPT_HOST},
	{"port", required_argument, NULL, OPT_PORT},
	{"ready-file", required_argument, NULL, OPT_READY},
	{"op-threads", required_argument, NULL, OPT_OPS},
	{"filestore-threads", required_argument, NULL, OPT_FILESTORE},
	{"journal-segment-mib", required_argument, NULL, OPT_SEGMENT},
	{"delay-journal-us", required_argument, NULL, OPT_DELAY},
	{"help", no_argument, NULL, OPT_HELP},
	{NULL, 0, NULL, 0},
};

static void set_option(struct osd_options *o, int option)
{
	switch (option) {
	case OPT_ID:
		o->id = (int)option_number("id", optarg, 0, MAX_OSDS - 1);
		break;
	case OPT_DIR:
		o->dir = optarg;
		break;
	case OPT_HOST:
		o->host = optarg;
		break;
	case OPT_PORT:
		o->port = (int)option_number("port", optarg, 0, 65535);
		break;
	case OPT_READY:
		o->ready_file = optarg;
		break;
	case OPT_OPS:
		o->op_threads = (unsigned)option_number("op-threads", optarg, 1, MAX_THREADS);
		break;
	case OPT_FILESTORE:
		o->filestore_threads = (unsigned)option_number("filestore-threads", optarg, 1, MAX_THREADS);
		break;
	case OPT_SEGMENT:
		o->segment_bytes = (size_t)option_number("journal-segment-mib", optarg, 8, 1024) << 20;
		break;
	case OPT_DELAY:
		o->delay_journal_us = (unsigned)option_number("delay-journal-us", optarg, 0, 60000000);
		break;
	case OPT_HELP:
		fputs(help, stdout);
		exit(0);
	default:
		fputs("Try objstore-osd --help\n", stderr);
		exit(2);
	}
}

static struct osd_options read_options(int argc, char **argv)
{
	struct osd_options o = {
		.id = -1, .host = "127.0.0.1", .op_threads = 2, .filestore_threads = 2, .segment_bytes = 16u << 20};
	int option;

	while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1)
		set_option(&o, option);
	if (o.id < 0 || !o.dir || optind != argc || strlen(o.dir) > 400) {
		fputs("objstore-osd needs --id and --dir (of at most 400 characters). Try --help\n", stderr);
		exit(2);
	}
	return o;
}

static uint64_t random_id(void)
{
	uint64_t id = 0;

	while (id == 0)
		if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id)
			die("failed to get random bytes: %s", strerror(errno));
	return id;
}

/* DIR/identity: a line with the OSD's number and a random id that a new directory cannot have. */
static void load_identity(struct osd *osd)
{
	char path[600], text[64];
	ssize_t n;
	int id;

	if (mkdir(osd->options.dir, 0755) != 0 && errno != EEXIST)
		die("failed to make %s: %s", osd->options.dir, strerror(errno));
	snprintf(path, sizeof path, "%s/identity", osd->options.dir);
	n = atomic_file_read(path, text, sizeof text - 1);
	if (n == -ENOENT) {
		osd->store_id = random_id();
		n = snprintf(text, sizeof text, "osd.%d %016" PRIx64 "\n", osd->options.id, osd->store_id);
		n = atomic_file_write(path, text, (size_t)n);
		if (n != 0)
			die("failed to write %s: %s", path, strerror((int)-n));
		return;
	}
	if (n < 0)
		die("failed to read %s: %s", path, strerror((int)-n));
	text[n] = '\0';
	if (sscanf(text, "osd.%d %" SCNx64, &id, &osd->store_id) != 2 || osd->store_id == 0)
		die("failed to read %s: it names no OSD; is this the directory of an OSD?", path);
	if (id != osd->options.id)
		die("failed to start: %s belongs to osd.%d, not to osd.%d", osd->options.dir, id, osd->options.id);
}

static void name_endpoints(struct osd *osd)
{
	const char *ip = osd->options.host;
	int16_t port = (int16_t)osd->options.port;

	snprintf(osd->name, sizeof osd->name, "osd.%d", osd->options.id);
	snprintf(osd->journal_name, sizeof osd->journal_name, "journal (%s/journal)", osd->options.dir);
	snprintf(osd->filestore_name, sizeof osd->filestore_name, "filestore (%s/store)", osd->options.dir);
	blkin_init_endpoint(&osd->self, ip, port, osd->name);
	blkin_init_endpoint(&osd->journal_ep, ip, port, osd->journal_name);
	blkin_init_endpoint(&osd->filestore_ep, ip, port, osd->filestore_name);
	blkin_init_endpoint(&osd->mosdopreply_ep, ip, port, "mosdopreply");
	blkin_init_endpoint(&osd->mosdsubopreply_ep, ip, port, "mosdsubopreply");
	for (int n = 0; n < MAX_OSDS; n++)
		snprintf(osd->waiting_for[n], sizeof osd->waiting_for[n], "Sub op sent waiting for subops from %d", n);
}

static void start_thread(pthread_t *thread, void *(*run)(void *), void *arg)
{
	int rc = pthread_create(thread, NULL, run, arg);

	if (rc != 0)
		die("failed to start a thread: %s", strerror(rc));
}

/* Whether the last map that this OSD saw says so. Without a map, others may rely on this copy, so the answer is no. */
static bool is_to_be_refilled(const struct osd *osd, const struct osdmap *map, unsigned pg)
{
	return pg < map->pg_count && map->pg[pg].replica == osd->options.id && map->pg[pg].state != REPLICA_COMPLETE;
}

/*
 * A group that will be refilled may have damaged objects, as after a power failure during a refill: the refill replaces
 * them. In every other group the other replica relies on this copy, so the OSD must not start with a damaged object.
 */
static void refuse_damage(struct osd *osd)
{
	unsigned char bytes[OSDMAP_MAX_BYTES];
	struct osdmap map = {0};
	char path[800];
	size_t len;

	if (map_load(osd, bytes, &len) == 0)
		osdmap_decode(&map, bytes, len);
	for (unsigned pg = 0; pg < MAX_PGS; pg++)
		if (!is_to_be_refilled(osd, &map, pg) && store_damaged(&osd->store, pg, path, sizeof path))
			die("failed to start: %s is damaged, and the journal does not have it. Remove this OSD's directory "
			    "to have it refilled from its peers",
			    path);
}

static void open_store(struct osd *osd)
{
	struct journal_hooks hooks = osd_journal_hooks;
	int rc = store_open(&osd->store, osd->options.dir);

	if (rc != 0)
		die("failed to open the store in %s: %s", osd->options.dir, strerror(-rc));
	hooks.owner = osd;
	rc = journal_open(&osd->journal, osd->options.dir, osd->options.segment_bytes, osd->options.delay_journal_us,
			  &hooks);
	if (rc != 0)
		die("failed to open the journal in %s: %s", osd->options.dir, strerror(-rc));
	if (osd->journal.replayed > 0)
		log_line("replayed %" PRIu64 " journal entries", osd->journal.replayed);
	refuse_damage(osd);
}

static void start_threads(struct osd *osd)
{
	const struct osd_options *o = &osd->options;

	for (unsigned n = 0; n < MAX_PGS; n++)
		pg_init(osd, n);
	for (unsigned n = 0; n < o->op_threads; n++) {
		queue_init(&osd->dispatch[n]);
		start_thread(&osd->dispatch_threads[n], dispatch_thread, &osd->dispatch[n]);
	}
	for (unsigned n = 0; n < o->filestore_threads; n++) {
		queue_init(&osd->filestore[n]);
		start_thread(&osd->filestore_threads[n], filestore_thread, &osd->filestore[n]);
	}
	queue_init(&osd->maps);
	start_thread(&osd->map_thread, map_thread, osd);
	start_thread(&osd->recovery_thread, recovery_thread, osd);
}

static void finish_thread(struct queue *queue, pthread_t thread)
{
	queue_close(queue);
	pthread_join(thread, NULL);
}

static void stop_recovery(struct osd *osd)
{
	pthread_mutex_lock(&osd->map_lock);
	osd->stopping = true;
	if (osd->refill)
		conn_shutdown(osd->refill);
	pthread_cond_broadcast(&osd->map_changed);
	pthread_mutex_unlock(&osd->map_lock);
	pthread_join(osd->recovery_thread, NULL);
}

/* Frees operations that still wait for a replica or a map; they were never acknowledged. */
static void drop(struct list *list)
{
	struct link *link;

	while ((link = list_pop(list)) != NULL)
		op_free(ITEM_OF(link, struct op, link));
}

static void drop_queue(struct queue *queue)
{
	drop(&queue->items);
	queue_destroy(queue);
}

static void free_pg(struct pg *pg)
{
	struct op *op;

	while ((op = pg->first) != NULL) {
		pg->first = op->next;
		op_free(op);
	}
	drop(&pg->waiting);
	pthread_mutex_destroy(&pg->lock);
}

static void free_all(struct osd *osd)
{
	for (unsigned n = 0; n < osd->options.op_threads; n++)
		drop_queue(&osd->dispatch[n]);
	for (unsigned n = 0; n < osd->options.filestore_threads; n++)
		drop_queue(&osd->filestore[n]);
	drop_queue(&osd->maps);
	for (unsigned n = 0; n < osd->peer_count; n++)
		if ((int)n != osd->options.id)
			peer_destroy(&osd->peers[n]);
	for (unsigned n = 0; n < MAX_PGS; n++)
		free_pg(&osd->pgs[n]);
	drop(&osd->for_newer_map);
	conn_release(osd->gateway);
	store_close(&osd->store);
}

/* Stops the stages in the order in which an operation passes them, so that each one still gets what the stage before it had. */
static void stop(struct osd *osd, struct sessions *sessions)
{
	sessions_stop(sessions);
	stop_recovery(osd);
	finish_thread(&osd->maps, osd->map_thread);
	for (unsigned n = 0; n < osd->options.op_threads; n++)
		finish_thread(&osd->dispatch[n], osd->dispatch_threads[n]);
	for (unsigned n = 0; n < osd->peer_count; n++)
		if ((int)n != osd->options.id)
			peer_stop(&osd->peers[n]);
	journal_close(&osd->journal);
	for (unsigned n = 0; n < osd->options.filestore_threads; n++)
		finish_thread(&osd->filestore[n], osd->filestore_threads[n]);
	free_all(osd);
}

int main(int argc, char **argv)
{
	static struct osd osd;
	struct sessions *sessions;
	int listener, rc;

	osd.options = read_options(argc, argv);
	stop_signal_block();
	blkin_init();
	osd.boot = random_id();
	snprintf(osd.name, sizeof osd.name, "osd.%d", osd.options.id);
	log_name(osd.name);
	load_identity(&osd);
	listener = net_listen(osd.options.host, &osd.options.port);
	if (listener < 0)
		die("failed to listen on %s:%d: %s", osd.options.host, osd.options.port, strerror(-listener));
	name_endpoints(&osd);
	pthread_mutex_init(&osd.map_lock, NULL);
	pthread_cond_init(&osd.map_changed, NULL);
	list_init(&osd.for_newer_map);
	open_store(&osd);
	start_threads(&osd);
	sessions = sessions_start(&osd, listener);
	rc = ready_write(osd.options.ready_file, osd.options.host, osd.options.port);
	if (rc != 0)
		die("failed to write %s: %s", osd.options.ready_file, strerror(-rc));
	log_line("serving %s on %s:%d", osd.options.dir, osd.options.host, osd.options.port);
	stop_signal_wait();
	stop(&osd, sessions);
	log_line("stopped; annotations=%" PRIu64, trace_annotations());
	return 0;
}
