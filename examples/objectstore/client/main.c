/* main.c - objstore-client: options and commands. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "options.h"

static const char help[] =
	"objstore-client - puts, gets and deletes objects, one at a time or as a load\n"
	"\n"
	"  objstore-client --gateway 127.0.0.1:6700 put NAME < FILE\n"
	"  objstore-client --gateway 127.0.0.1:6700 get NAME > FILE\n"
	"  objstore-client --gateway 127.0.0.1:6700 delete NAME\n"
	"  objstore-client --gateway 127.0.0.1:6700 load --threads 4 --size 4096 --seconds 5 --mix 70,25,5\n"
	"  objstore-client --gateway 127.0.0.1:6700 verify --acked-log FILE\n"
	"  objstore-client --gateway 127.0.0.1:6700 status --wait clean\n"
	"\n"
	"Names have 1 to 200 characters of A-Z a-z 0-9 . _ -; objects at most 4 MiB.\n"
	"\n"
	"  --gateway ADDRESS:PORT  or @FILE, the gateway's --ready-file\n"
	"  --json                  print a JSON object\n"
	"  --annotations N         annotations of each put's trace, all processes together, 98 to 10000 (98, as in\n"
	"                          the reference trace; more are spread over its 17 spans)\n"
	"  --no-trace              begin no traces (BLKIN_RATE=N begins one in N)\n"
	"\n"
	"status\n"
	"  --wait clean|degraded   wait until every object has both copies (clean), or until some lack one\n"
	"                          (degraded)\n"
	"  --timeout-ms N          for at most this long (30000)\n"
	"\n"
	"load: each thread has its own connection and objects, and checks everything it reads; Ctrl-C ends it\n"
	"  --threads N             (1)\n"
	"  --size BYTES            (4096)\n"
	"  --count N               operations in all (1000, unless --seconds is given)\n"
	"  --seconds S             end after this time\n"
	"  --objects N             objects of each thread (1000)\n"
	"  --mix PUT,GET,DELETE    shares of the operations (100,0,0)\n"
	"  --rate N                operations a second at most, all threads together (no limit)\n"
	"  --prefix P              the objects are called P-tNN-oNNNNNN (load)\n"
	"  --seed N                seed of the random order of operations (1)\n"
	"  --acked-log FILE        write which generation of each object the store acknowledged; for verify\n"
	"  --keep-going            count failed operations instead of ending at the first; losing the gateway\n"
	"                          still ends the load\n"
	"\n"
	"Exit status: 0 done, 1 failed or read wrong content, 2 wrong usage.\n";

enum {
	OPT_GATEWAY = 256, OPT_JSON, OPT_ANNOTATIONS, OPT_NO_TRACE, OPT_WAIT, OPT_TIMEOUT, OPT_THREADS, OPT_SIZE,
	OPT_COUNT, OPT_SECONDS, OPT_OBJECTS, OPT_MIX, OPT_RATE, OPT_PREFIX, OPT_SEED, OPT_LOG, OPT_KEEP_GOING, OPT_HELP,
};

static const struct option long_options[] = {
	{"gateway", required_argument, NULL, OPT_GATEWAY},
	{"json", no_argument, NULL, OPT_JSON},
	{"annotations", required_argument, NULL, OPT_ANNOTATIONS},
	{"no-trace", no_argument, NULL, OPT_NO_TRACE},
	{"wait", required_argument, NULL, OPT_WAIT},
	{"timeout-ms", required_argument, NULL, OPT_TIMEOUT},
	{"threads", required_argument, NULL, OPT_THREADS},
	{"size", required_argument, NULL, OPT_SIZE},
	{"count", required_argument, NULL, OPT_COUNT},
	{"seconds", required_argument, NULL, OPT_SECONDS},
	{"objects", required_argument, NULL, OPT_OBJECTS},
	{"mix", required_argument, NULL, OPT_MIX},
	{"rate", required_argument, NULL, OPT_RATE},
	{"prefix", required_argument, NULL, OPT_PREFIX},
	{"seed", required_argument, NULL, OPT_SEED},
	{"acked-log", required_argument, NULL, OPT_LOG},
	{"keep-going", no_argument, NULL, OPT_KEEP_GOING},
	{"help", no_argument, NULL, OPT_HELP},
	{NULL, 0, NULL, 0},
};

static void usage_error(const char *why)
{
	fprintf(stderr, "objstore-client: %s. Try --help\n", why);
	exit(2);
}

static double positive(const char *name, const char *text)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end != '\0' || !(value > 0 && value < 1e9)) {
		fprintf(stderr, "failed to read --%s %s: give a positive number\n", name, text);
		exit(2);
	}
	return value;
}

static void read_mix(struct client_options *o)
{
	char more;

	if (sscanf(optarg, "%u,%u,%u%c", &o->put_share, &o->get_share, &o->delete_share, &more) != 3 ||
	    o->put_share > 1000 || o->get_share > 1000 || o->delete_share > 1000 ||
	    o->put_share + o->get_share + o->delete_share == 0)
		usage_error("--mix takes three shares, as in 70,25,5");
}

static void read_wait(struct client_options *o)
{
	if (strcmp(optarg, "clean") == 0)
		o->wait = FLAG_WAIT_CLEAN;
	else if (strcmp(optarg, "degraded") == 0)
		o->wait = FLAG_WAIT_DEGRADED;
	else
		usage_error("--wait takes clean or degraded");
}

static bool set_common_option(struct client_options *o, int option)
{
	switch (option) {
	case OPT_GATEWAY:
		o->gateway = optarg;
		return true;
	case OPT_JSON:
		o->json = true;
		return true;
	case OPT_ANNOTATIONS:
		o->annotations = (unsigned)option_number("annotations", optarg, TRACE_REFERENCE_ANNOTATIONS,
							 TRACE_MAX_ANNOTATIONS);
		return true;
	case OPT_NO_TRACE:
		o->trace = false;
		return true;
	case OPT_WAIT:
		read_wait(o);
		return true;
	case OPT_TIMEOUT:
		o->timeout_ms = (unsigned)option_number("timeout-ms", optarg, 1, 599999);
		return true;
	case OPT_HELP:
		fputs(help, stdout);
		exit(0);
	default:
		return false;
	}
}

static void set_load_option(struct client_options *o, int option)
{
	switch (option) {
	case OPT_THREADS:
		o->threads = (unsigned)option_number("threads", optarg, 1, 200);
		break;
	case OPT_SIZE:
		o->size = (uint32_t)option_number("size", optarg, 1, MAX_OBJECT_BYTES);
		break;
	case OPT_COUNT:
		o->count = (uint64_t)option_number("count", optarg, 1, 1000000000000);
		break;
	case OPT_SECONDS:
		o->seconds = positive("seconds", optarg);
		break;
	case OPT_OBJECTS:
		o->objects = (unsigned)option_number("objects", optarg, 1, 10000000);
		break;
	case OPT_MIX:
		read_mix(o);
		break;
	case OPT_RATE:
		o->rate = positive("rate", optarg);
		break;
	case OPT_PREFIX:
		o->prefix = optarg;
		break;
	case OPT_SEED:
		o->seed = (uint64_t)option_number("seed", optarg, 0, 1000000000);
		break;
	case OPT_LOG:
		o->acked_log = optarg;
		break;
	case OPT_KEEP_GOING:
		o->keep_going = true;
		break;
	default:
		usage_error("unknown option, or one without its value");
	}
}

static struct client_options read_options(int argc, char **argv)
{
	struct client_options o = {.trace = true,
				   .timeout_ms = 30000,
				   .threads = 1,
				   .size = 4096,
				   .objects = 1000,
				   .put_share = 100,
				   .prefix = "load",
				   .seed = 1};
	int option;

	while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1)
		if (!set_common_option(&o, option))
			set_load_option(&o, option);
	if (!o.gateway)
		usage_error("--gateway is needed");
	if (optind >= argc)
		usage_error("a command is needed: put, get, delete, load, verify or status");
	if (!msg_name_is_valid(o.prefix, strlen(o.prefix)) || strlen(o.prefix) > 150)
		usage_error("--prefix must be 1 to 150 characters of A-Z a-z 0-9 . _ -");
	if (o.count == 0 && o.seconds <= 0)
		o.count = 1000;
	return o;
}

static int fail(const char *what, const char *name, int rc)
{
	fprintf(stderr, "objstore-client: failed to %s %s: %s\n", what, name, strerror(-rc));
	return 1;
}

/* Reads all of stdin; -EFBIG when that is more than an object may hold. */
static int read_stdin(unsigned char **data, uint32_t *len)
{
	size_t n;

	*data = malloc(MAX_OBJECT_BYTES + 1);
	if (!*data)
		return -ENOMEM;
	n = fread(*data, 1, MAX_OBJECT_BYTES + 1, stdin);
	*len = (uint32_t)n;
	if (ferror(stdin))
		return -EIO;
	return n > MAX_OBJECT_BYTES ? -EFBIG : 0;
}

static int run_object_command(struct connection *connection, enum op_code op, const char *command, const char *name)
{
	unsigned char *data = NULL;
	struct msg reply;
	uint32_t len = 0;
	int rc = op == OP_PUT ? read_stdin(&data, &len) : 0;

	if (rc == 0)
		rc = connection_run(connection, op, name, data, len, &reply);
	free(data);
	if (rc != 0)
		return fail(command, name, rc);
	if (op == OP_GET && reply.data_len > 0 && fwrite(reply.data, 1, reply.data_len, stdout) != reply.data_len)
		rc = fail("write to stdout", name, -EIO);
	msg_clear(&reply);
	return rc;
}

static int run_status(struct connection *connection)
{
	struct msg reply;
	int rc = connection_status(connection, &reply);

	if (rc != 0)
		return fail("ask for the", "status", rc);
	printf("%.*s\n", (int)reply.data_len, (const char *)reply.data);
	rc = reply.result;
	msg_clear(&reply);
	return rc == 0 ? 0 : fail("get the awaited", "status", rc);
}

static int run_with_connection(const struct client_options *o, enum op_code op, const char *command, const char *name)
{
	struct connection connection;
	int rc = connection_open(&connection, o);

	if (rc != 0)
		return fail("connect to", o->gateway, rc);
	rc = op == OP_STATUS ? run_status(&connection) : run_object_command(&connection, op, command, name);
	connection_close(&connection);
	return rc;
}

static enum op_code op_of(const char *command)
{
	if (strcmp(command, "put") == 0)
		return OP_PUT;
	if (strcmp(command, "get") == 0)
		return OP_GET;
	if (strcmp(command, "delete") == 0)
		return OP_DELETE;
	return strcmp(command, "status") == 0 ? OP_STATUS : OP_NONE;
}

int main(int argc, char **argv)
{
	struct client_options o = read_options(argc, argv);
	const char *command = argv[optind], *name = argv[optind + 1];
	enum op_code op = op_of(command);
	bool with_name = op == OP_PUT || op == OP_GET || op == OP_DELETE;

	signal(SIGPIPE, SIG_IGN);
	if (argc != optind + (with_name ? 2 : 1))
		usage_error(with_name ? "this command takes one name" : "this command takes no argument");
	if (with_name && !msg_name_is_valid(name, strlen(name)))
		usage_error("a name has 1 to 200 characters of A-Z a-z 0-9 . _ -");
	blkin_init();
	if (op != OP_NONE)
		return run_with_connection(&o, op, command, name);
	if (strcmp(command, "load") == 0)
		return load_run(&o);
	if (strcmp(command, "verify") == 0 && o.acked_log)
		return verify_run(&o);
	usage_error(strcmp(command, "verify") == 0 ? "verify needs --acked-log" : "no such command");
}
