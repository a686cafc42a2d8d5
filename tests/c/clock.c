/*
 * Records events, each between two readings of CLOCK_REALTIME, which are recorded with it as integers.
 *
 *   clock SAMPLES SECONDS
 *
 * Two threads share the samples and spread them over the time in bursts of 1 to 1,000. Each sample is a span of three
 * annotations: the event "sample" and the keys "before" and "after", in nanoseconds. Prints "ready"; a line on stdin starts
 * the run, and it prints "wrote CALLS" at the end.
 */
#define _GNU_SOURCE
#include <blkin/zipkin_c.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { THREADS = 2 };

static long samples, seconds;
static struct blkin_endpoint endpoint;

static int64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void sleep_until(int64_t monotonic_ns)
{
	struct timespec due = { monotonic_ns / 1000000000, monotonic_ns % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL))
		;
}

static void sample(const struct blkin_trace *root)
{
	struct blkin_trace span;
	int64_t before, after;

	blkin_init_child(&span, root, NULL, "clock");
	before = now_ns(CLOCK_REALTIME);
	BLKIN_TIMESTAMP(&span, NULL, "sample");
	after = now_ns(CLOCK_REALTIME);
	BLKIN_KEYVAL_INTEGER(&span, NULL, "before", before);
	BLKIN_KEYVAL_INTEGER(&span, NULL, "after", after);
}

static void *sampling(void *unused)
{
	static const long bursts[] = { 1, 10, 1, 100, 10, 1000 };
	const long mine = samples / THREADS;
	const int64_t began = now_ns(CLOCK_MONOTONIC);
	struct blkin_trace root;
	long done = 0;

	blkin_init_new_trace(&root, "clock", &endpoint);
	for (size_t turn = 0; done < mine; turn++) {
		long burst = bursts[turn % (sizeof(bursts) / sizeof(*bursts))];

		for (long i = 0; i < burst && done < mine; i++, done++)
			sample(&root);
		sleep_until(began + (int64_t)((double)done / mine * seconds * 1e9));
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	char line[16];

	if (argc != 3 || blkin_init() != 0)
		return 1;
	samples = strtol(argv[1], NULL, 10) / THREADS * THREADS;
	seconds = strtol(argv[2], NULL, 10);
	blkin_init_endpoint(&endpoint, "127.0.0.1", 1, "clock");
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 0;
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, sampling, NULL))
			return 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("wrote %ld\n", samples * 3);
	return 0;
}
