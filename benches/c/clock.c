#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <x86intrin.h>

#include "bench.h"

uint64_t bench_ticks(void)
{
	_mm_lfence();
	uint64_t now = __rdtsc();
	_mm_lfence();
	return now;
}

#define FOUR_ADDITIONS "add $1,%%r8\nadd $1,%%r9\nadd $1,%%r10\nadd $1,%%r11\n"

double bench_core_ticks(void)
{
	double best = 1e18;

	/* The better of two runs counts: the first may meet an interrupt, or a core that has just woken up. */
	for (int run = 0; run < 2; run++) {
		uint64_t before = bench_ticks();
		for (int i = 0; i < 300; i++)
			__asm__ volatile(FOUR_ADDITIONS FOUR_ADDITIONS FOUR_ADDITIONS FOUR_ADDITIONS
					 : : : "r8", "r9", "r10", "r11");
		double ticks = (double)(bench_ticks() - before);
		best = ticks < best ? ticks : best;
	}
	return best;
}

double bench_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

void bench_pin(int cpu)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (sched_setaffinity(0, sizeof one, &one)) {
		perror("sched_setaffinity");
		exit(1);
	}
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double bench_median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof *values, by_value);
	return (values[(count - 1) / 2] + values[count / 2]) / 2;
}
