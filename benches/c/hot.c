/*
 * The cost of one call: PROGRAM [-b BURSTS] [-n CALLS] [-p PAUSE_US] [-c KIB | -l | -t | -f | -F] CASE
 *
 *  (default)  bursts of calls, with pauses in which the reader can catch up; the fenced time stamp counter is read before
 *             and after each burst; prints the time per call of the median burst. A second line, case/own, gives the same for
 *             only those bursts during which nobody else used the core, as a virtual machine's neighbour on its other thread
 *             does (0: there were too few). A third line, case/core, gives the core's best time for a fixed piece of work; by
 *             it the driver recognises runs that were slowed all the time
 *  -c KIB     cold: single calls, each after KIB of other memory was written; prints the median call
 *  -l         first lap: the first burst of a new process, after one call that creates and maps what is needed
 *  -t         as default, by two threads at once, on CPU 0 and CPU 1; prints the mean of their medians
 *  -f         the very first call, in microseconds; -F the same in a forked child of a process that has made a call
 *
 * Prints "case<TAB>unit<TAB>value". The driver pins, repeats and compares.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { ATTACH_US = 100000, FEWEST = 5 };

static int bursts = 150, calls = 5000, pause_us = 4000, cold_kib = -1;
static double start_ns;
static uint64_t start_ticks;

static void rest(int microseconds)
{
	const struct timespec pause = { microseconds / 1000000, microseconds % 1000000 * 1000L };
	nanosleep(&pause, NULL);
}

static double ns_per_tick(void)
{
	return (bench_now_ns() - start_ns) / (double)(bench_ticks() - start_ticks);
}

static void prepare(const struct bench_case *one)
{
	if (one->prepare)
		one->prepare();
}

static double timed(const struct bench_case *one, int count)
{
	uint64_t before = bench_ticks();
	one->calls(count);
	return (double)(bench_ticks() - before);
}

static double burst(const struct bench_case *one, int count)
{
	prepare(one);
	return timed(one, count);
}

/* Makes the first call, which creates and maps everything, and gives the reader time to attach. */
static void begin(const struct bench_case *one)
{
	burst(one, 1);
	rest(ATTACH_US);
}

/* A shared core runs the additions at half to four fifths of its speed, so this factor separates the two states. */
static const double SAME_SPEED = 1.12;

/* Further results of hot(). */
static double own_ns, core_ticks;

static double least(const double *values, int count)
{
	double best = values[0];
	for (int i = 1; i < count; i++)
		best = values[i] < best ? values[i] : best;
	return best;
}

static double hot(const struct bench_case *one)
{
	double *ticks = calloc((size_t)bursts, sizeof *ticks), *own = calloc((size_t)bursts, sizeof *own);
	double *speeds = calloc((size_t)bursts, sizeof *speeds);
	int owned = 0;

	begin(one);
	for (int i = 0; i < bursts; i++) {
		double before = bench_core_ticks();
		ticks[i] = burst(one, calls);
		double after = bench_core_ticks();
		speeds[i] = before > after ? before : after;
		rest(pause_us);
	}
	core_ticks = least(speeds, bursts);
	for (int i = 0; i < bursts; i++)
		if (speeds[i] < core_ticks * SAME_SPEED)
			own[owned++] = ticks[i];
	if (owned >= FEWEST)
		own_ns = bench_median(own, owned) / calls * ns_per_tick();
	double median = bench_median(ticks, bursts) / calls * ns_per_tick();
	free(ticks);
	free(own);
	free(speeds);
	return median;
}

/* The cost of reading the clock twice and of the loop is measured in the same way, hot, and subtracted. */
static double cold(const struct bench_case *one)
{
	enum { SINGLES = 400, LINE = 64 };
	double singles[SINGLES], empty[SINGLES];
	size_t bytes = (size_t)cold_kib * 1024;
	volatile unsigned char *other = calloc(1, bytes + 1);

	begin(one);
	for (int i = 0; i < SINGLES; i++) {
		/* Before the other memory is touched: a request that was just begun would be in the caches. */
		prepare(one);
		for (size_t at = 0; at < bytes; at += LINE)
			other[at]++;
		singles[i] = timed(one, 1);
		if (i % 50 == 49)
			rest(pause_us);
	}
	for (int i = 0; i < SINGLES; i++)
		empty[i] = burst(&bench_cases[0], 1);
	return (bench_median(singles, SINGLES) - bench_median(empty, SINGLES)) * ns_per_tick();
}

static double first_lap(const struct bench_case *one)
{
	begin(one);
	double ticks = burst(one, calls);
	rest(pause_us);
	return ticks / calls * ns_per_tick();
}

static double first_call(const struct bench_case *one)
{
	double before = bench_now_ns();
	one->calls(1);
	return (bench_now_ns() - before) / 1000;
}

static double first_call_of_child(const struct bench_case *one)
{
	int ends[2];
	double us = 0;

	one->calls(1);
	if (pipe(ends))
		exit(1);
	fflush(stdout);
	if (fork() == 0) {
		us = first_call(one);
		_exit(write(ends[1], &us, sizeof us) != sizeof us);
	}
	if (read(ends[0], &us, sizeof us) != sizeof us)
		exit(1);
	wait(NULL);
	return us;
}

struct producer {
	const struct bench_case *one;
	pthread_barrier_t *together;
	int cpu;
	double ns;
};

static void *produce(void *argument)
{
	struct producer *me = argument;
	double *ticks = calloc((size_t)bursts, sizeof *ticks);

	bench_pin(me->cpu);
	for (int i = 0; i < bursts; i++) {
		pthread_barrier_wait(me->together);
		ticks[i] = burst(me->one, calls);
		rest(pause_us);
	}
	me->ns = bench_median(ticks, bursts) / calls * ns_per_tick();
	free(ticks);
	return NULL;
}

static double two_threads(const struct bench_case *one)
{
	pthread_barrier_t together;
	struct producer producers[2] = { { one, &together, 0, 0 }, { one, &together, 1, 0 } };
	pthread_t threads[2];

	begin(one);
	pthread_barrier_init(&together, NULL, 2);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, produce, &producers[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	return (producers[0].ns + producers[1].ns) / 2;
}

static const struct bench_case *find(const char *name)
{
	const struct bench_case *one = bench_cases;
	while (one->name && (!name || strcmp(one->name, name)))
		one++;
	if (!one->name) {
		fprintf(stderr, "usage: [-b BURSTS] [-n CALLS] [-p PAUSE_US] [-c KIB|-l|-t|-f|-F] CASE, one of:");
		for (one = bench_cases; one->name; one++)
			fprintf(stderr, " %s", one->name);
		fprintf(stderr, "\n");
		exit(2);
	}
	return one;
}

int main(int argc, char **argv)
{
	double (*measure)(const struct bench_case *) = hot;
	const char *unit = "ns";
	int option;

	while ((option = getopt(argc, argv, "b:n:p:c:ltfF")) != -1) {
		switch (option) {
		case 'b': bursts = atoi(optarg); break;
		case 'n': calls = atoi(optarg); break;
		case 'p': pause_us = atoi(optarg); break;
		case 'c': cold_kib = atoi(optarg); measure = cold; break;
		case 'l': measure = first_lap; break;
		case 't': measure = two_threads; break;
		case 'f': measure = first_call; unit = "us"; break;
		case 'F': measure = first_call_of_child; unit = "us"; break;
		default: find(NULL);
		}
	}
	const struct bench_case *one = find(argv[optind]);
	if (bursts < 1 || calls < 1)
		find(NULL);
	start_ns = bench_now_ns();
	start_ticks = bench_ticks();
	/* The first call of a program is to do all that the setup would do otherwise. */
	if (measure != first_call)
		bench_setup();
	printf("%s\t%s\t%.3f\n", one->name, unit, measure(one));
	if (measure == hot)
		printf("%s/own\tns\t%.3f\n%s/core\tticks\t%.0f\n", one->name, own_ns, one->name, core_ticks);
	return 0;
}
