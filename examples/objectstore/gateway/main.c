/* main.c - objstore-gateway: options, start, stop. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gateway.h"
#include "log.h"
#include "net.h"
#include "options.h"
#include "stop_signal.h"

static const char help[] =
	"objstore-gateway - accepts clients; knows the OSDs, and which OSD has which object\n"
	"\n"
	"  objstore-gateway --dir /var/lib/objstore/gateway --osd 0=127.0.0.1:6800 --osd 1=@/run/objstore/osd-1\n"
	"\n"
	"  --dir DIR            directory for the map; made if it is missing. If it is empty, the gateway waits\n"
	"                       for every OSD and goes on with the newest map that any of them has seen\n"
	"  --osd N=ADDRESS:PORT where osd.N listens; or N=@FILE, its --ready-file, read before each connection.\n"
	"                       One for each of osd.0, osd.1, ...; at least two\n"
	"  --pgs N              placement groups of a new map (32); the number cannot be changed later\n"
	"  --host ADDRESS       listen here (127.0.0.1)\n"
	"  --port N             and on this port (0: a free one; see --ready-file)\n"
	"  --ready-file FILE    write ADDRESS:PORT here once clients are accepted\n"
	"  --op-timeout-ms N    time after which an operation fails if no OSD can serve it (30000)\n"
	"  --osd-timeout-ms N   time after which a silent OSD counts as down (5000)\n"
	"\n"
	"Each object belongs to a placement group, each group to a primary and a replica. When the primary goes\n"
	"down, the replica takes over; an OSD that comes back is refilled from the other before its copy counts\n"
	"again. Run one gateway per cluster. SIGTERM and SIGINT stop it cleanly.\n"
	"Exit status: 0 stopped, 1 failed (the reason is on stderr), 2 wrong usage.\n";

enum { OPT_DIR = 256, OPT_OSD, OPT_PGS, OPT_HOST, OPT_PORT, OPT_READY, OPT_OP_TIMEOUT, OPT_OSD_TIMEOUT, OPT_HELP };

static const struct option long_options[] = {
	{"dir", required_argument, NULL, OPT_DIR},
	{"osd", required_argument, NULL, OPT_OSD},
	{"pgs", required_argument, NULL, OPT_PGS},
	{"host", required_argument, NULL, OPT_HOST},
	{"port", required_argument, NULL, OPT_PORT},
	{"ready-file", required_argument, NULL, OPT_READY},
	{"op-timeout-ms", required_argument, NULL, OPT_OP_TIMEOUT},
	{"osd-timeout-ms", required_argument, NULL, OPT_OSD_TIMEOUT},
	{"help", no_argument, NULL, OPT_HELP},
	{NULL, 0, NULL, 0},
};

static void usage_error(const char *why)
{
	fprintf(stderr, "objstore-gateway: %s. Try --help\n", why);
	exit(2);
}

static void add_osd(struct gateway_options *o, char *text)
{
	char *equals = strchr(text, '=');
	long id;

	if (!equals || strlen(equals + 1) == 0)
		usage_error("--osd takes N=ADDRESS:PORT or N=@FILE");
	*equals = '\0';
	id = option_number("osd", text, 0, MAX_OSDS - 1);
	if (equals[1] != '@' && strlen(equals + 1) >= ADDRESS_BYTES)
		usage_error("that address is too long");
	if (!o->osd[id])
		o->osd_count++;
	o->osd[id] = equals + 1;
}

static void set_option(struct gateway_options *o, int option)
{
	switch (option) {
	case OPT_DIR:
		o->dir = optarg;
		break;
	case OPT_OSD:
		add_osd(o, optarg);
		break;
	case OPT_PGS:
		o->pgs = (unsigned)option_number("pgs", optarg, 1, MAX_PGS);
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
	case OPT_OP_TIMEOUT:
		o->op_timeout_ms = (unsigned)option_number("op-timeout-ms", optarg, 1, 3600000);
		break;
	case OPT_OSD_TIMEOUT:
		o->osd_timeout_ms = (unsigned)option_number("osd-timeout-ms", optarg, 1100, 3600000);
		break;
	case OPT_HELP:
		fputs(help, stdout);
		exit(0);
	default:
		usage_error("unknown option, or one without its value");
	}
}

static struct gateway_options read_options(int argc, char **argv)
{
	struct gateway_options o = {.host = "127.0.0.1", .op_timeout_ms = 30000, .osd_timeout_ms = 5000};
	int option;

	while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1)
		set_option(&o, option);
	if (!o.dir || strlen(o.dir) > 400 || optind != argc)
		usage_error("--dir (of at most 400 characters) is needed; arguments other than options are not allowed");
	if (o.osd_count < 2)
		usage_error("at least two --osd are needed");
	for (unsigned n = 0; n < o.osd_count; n++)
		if (!o.osd[n])
			usage_error("the numbers of the OSDs must be 0, 1, 2, ... without a gap");
	return o;
}

static void name_endpoints(struct gateway *gateway)
{
	const char *ip = gateway->options.host;
	int16_t port = (int16_t)gateway->options.port;

	blkin_init_endpoint(&gateway->vlmc, ip, port, "vlmc");
	blkin_init_endpoint(&gateway->mapper, ip, port, "mapper");
	blkin_init_endpoint(&gateway->radosd, ip, port, "radosd");
	blkin_init_endpoint(&gateway->ioctx, ip, port, "ioctx");
	blkin_init_endpoint(&gateway->objecter, ip, port, "objecter");
	blkin_init_endpoint(&gateway->mosdopreply, ip, port, "mosdopreply");
}

/* Ends the requests first, so that clients get their answers; then the OSD sessions. */
static void stop(struct gateway *gateway, struct clients *clients)
{
	pthread_mutex_lock(&gateway->lock);
	gateway->stopping = true;
	for (struct request *request = gateway->first; request; request = request->next)
		pthread_cond_signal(&request->finished);
	pthread_cond_broadcast(&gateway->changed);
	pthread_mutex_unlock(&gateway->lock);
	clients_stop(clients);
	osd_sessions_stop(gateway);
	pthread_cond_destroy(&gateway->changed);
	pthread_mutex_destroy(&gateway->lock);
}

int main(int argc, char **argv)
{
	static struct gateway gateway;
	struct clients *clients;
	int listener, rc;

	gateway.options = read_options(argc, argv);
	stop_signal_block();
	blkin_init();
	log_name("gateway");
	pthread_mutex_init(&gateway.lock, NULL);
	condition_init(&gateway.changed);
	if (mkdir(gateway.options.dir, 0755) != 0 && errno != EEXIST)
		die("failed to make %s: %s", gateway.options.dir, strerror(errno));
	monitor_load(&gateway);
	listener = net_listen(gateway.options.host, &gateway.options.port);
	if (listener < 0)
		die("failed to listen on %s:%d: %s", gateway.options.host, gateway.options.port, strerror(-listener));
	name_endpoints(&gateway);
	osd_sessions_start(&gateway);
	clients = clients_start(&gateway, listener);
	rc = ready_write(gateway.options.ready_file, gateway.options.host, gateway.options.port);
	if (rc != 0)
		die("failed to write %s: %s", gateway.options.ready_file, strerror(-rc));
	log_line("serving on %s:%d", gateway.options.host, gateway.options.port);
	stop_signal_wait();
	stop(&gateway, clients);
	log_line("stopped; annotations=%" PRIu64, trace_annotations());
	return 0;
}
