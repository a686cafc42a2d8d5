/*
 * Starts roots under RATE and counts those that are sampled.
 *
 *   sampler --threads T --roots K      each of T threads starts K/T roots
 *   sampler --forks F                  F children, one after the other, start one root each
 *
 * Each root, sampled or not, gets two annotations; "wrote CALLS" counts only those on sampled roots, so the number of
 * sampled roots is half of CALLS.
 */
#include <blkin/zipkin_c.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static long threads = 1, roots, forks;
static struct blkin_endpoint endpoint;
static long *calls;

static void one_root(void)
{
	struct blkin_trace trace;

	blkin_init_new_trace(&trace, "sampled", &endpoint);
	BLKIN_TIMESTAMP(&trace, &endpoint, "sr");
	BLKIN_TIMESTAMP(&trace, &endpoint, "ss");
	if (trace.info.trace_id != 0)
		__atomic_fetch_add(calls, 2, __ATOMIC_SEQ_CST);
}

static void *starting(void *unused)
{
	for (long i = 0; i < roots / threads; i++)
		one_root();
	return unused;
}

static void by_threads(void)
{
	pthread_t running[threads];

	for (long i = 0; i < threads; i++)
		if (pthread_create(&running[i], NULL, starting, NULL))
			abort();
	for (long i = 0; i < threads; i++)
		pthread_join(running[i], NULL);
}

static void by_forks(void)
{
	for (long i = 0; i < forks; i++) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			one_root();
			_exit(0);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
			abort();
	}
}

int main(int argc, char **argv)
{
	char line[16];

	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--threads") == 0)
			threads = strtol(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--roots") == 0)
			roots = strtol(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--forks") == 0)
			forks = strtol(argv[i + 1], NULL, 10);
	}
	calls = mmap(NULL, sizeof(*calls), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (calls == MAP_FAILED || blkin_init() != 0)
		return 1;
	blkin_init_endpoint(&endpoint, "127.0.0.1", 0, "sampler");
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		*calls = 0;
		by_threads();
		by_forks();
		printf("wrote %ld\n", *calls);
		fflush(stdout);
	}
	return 0;
}
