/*
 * Writes annotations in a chosen pattern and counts its own recording calls.
 *
 *   writer [--threads T] [--forks F] [--traces N] [--pace-us P] [--hop 1] [--close-all 1] [--service NAME]
 *
 * In every round, each of T threads of this process and of F forked children starts N traces of 8 annotations: the events
 * of a call's client and server, the same key twice, the same event twice in a row. With --pace-us each trace is followed
 * by a pause; with --hop a thread moves to another CPU between the key's two values, and begins the next trace there; with
 * --close-all it closes every descriptor but the standard ones after the first round. Prints "ready"; each line on stdin
 * starts a round, at whose end it prints "wrote CALLS"; ends at the end of stdin.
 */
#define _GNU_SOURCE
#include <blkin/zipkin_c.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long threads = 1, forks, traces = 100, pace_us, hop, close_all;
static const char *service = "writer";
static struct blkin_endpoint endpoint;
/* Shared with forked children: every writer adds its calls. */
static long *calls;

static void called(long times)
{
	__atomic_fetch_add(calls, times, __ATOMIC_SEQ_CST);
}

static void pause_us(long us)
{
	struct timespec pause = { us / 1000000, us % 1000000 * 1000 };

	if (us > 0)
		nanosleep(&pause, NULL);
}

/* Moves the thread to the next CPU that the process may use, in a circle; does nothing if there is only one. */
static void go_to_another_cpu(void)
{
	static cpu_set_t allowed;
	static int known, now = -1;
	cpu_set_t there;

	if (!known && sched_getaffinity(0, sizeof(allowed), &allowed))
		abort();
	known = 1;
	do
		now = (now + 1) % CPU_SETSIZE;
	while (!CPU_ISSET(now, &allowed));
	CPU_ZERO(&there);
	CPU_SET(now, &there);
	if (sched_setaffinity(0, sizeof(there), &there))
		abort();
}

static void one_trace(long number)
{
	struct blkin_trace trace;
	long before = 0;

	blkin_init_new_trace(&trace, "write", &endpoint);
	if (trace.info.trace_id == 0)
		return;
	BLKIN_TIMESTAMP(&trace, &endpoint, "cs"); before++;
	BLKIN_KEYVAL_STRING(&trace, &endpoint, "Object", "first"); before++;
	if (hop)
		go_to_another_cpu();
	BLKIN_KEYVAL_STRING(&trace, &endpoint, "Object", "second"); before++;
	BLKIN_KEYVAL_INTEGER(&trace, &endpoint, "number", number); before++;
	BLKIN_TIMESTAMP(&trace, &endpoint, "again"); before++;
	BLKIN_TIMESTAMP(&trace, &endpoint, "again"); before++;
	BLKIN_TIMESTAMP(&trace, &endpoint, "again"); before++;
	BLKIN_TIMESTAMP(&trace, &endpoint, "cr"); before++;
	called(before);
}

static void *writing(void *unused)
{
	for (long number = 0; number < traces; number++) {
		one_trace(number);
		pause_us(pace_us);
	}
	return unused;
}

static void write_by_threads(void)
{
	pthread_t running[threads];

	for (long i = 0; i < threads; i++)
		if (pthread_create(&running[i], NULL, writing, NULL))
			abort();
	for (long i = 0; i < threads; i++)
		pthread_join(running[i], NULL);
}

static void one_round(int closing)
{
	*calls = 0;
	for (long i = 0; i < forks; i++) {
		if (fork() == 0) {
			/*
			 * Makes the child's rings before it has threads: otherwise the first call makes them,
			 * and other threads' calls meanwhile are lost for the cause "starting".
			 */
			blkin_init();
			write_by_threads();
			_exit(0);
		}
	}
	write_by_threads();
	for (long i = 0; i < forks; i++) {
		int status;

		if (wait(&status) < 0 || status != 0)
			abort();
	}
	/* As a program does that becomes a daemon. */
	for (int fd = 3; closing && fd < 1024; fd++)
		close(fd);
	printf("wrote %ld\n", *calls);
	fflush(stdout);
}

static void read_arguments(int argc, char **argv)
{
	struct { const char *name; long *value; } known[] = {
		{ "--threads", &threads }, { "--forks", &forks },
		{ "--traces", &traces }, { "--pace-us", &pace_us }, { "--hop", &hop },
		{ "--close-all", &close_all },
	};

	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--service") == 0)
			service = argv[i + 1];
		for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
			if (strcmp(argv[i], known[k].name) == 0)
				*known[k].value = strtol(argv[i + 1], NULL, 10);
	}
}

int main(int argc, char **argv)
{
	char line[16];

	read_arguments(argc, argv);
	calls = mmap(NULL, sizeof(*calls), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (calls == MAP_FAILED || blkin_init() != 0)
		return 1;
	blkin_init_endpoint(&endpoint, "127.0.0.1", 6800, service);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		one_round(close_all);
		close_all = 0;
	}
	return 0;
}
