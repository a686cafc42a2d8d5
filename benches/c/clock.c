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
