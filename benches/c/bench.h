/* What a program of cases gives to the harness: its cases, and what to do once before any of them. */
#ifndef BLKIN_BENCH_H
#define BLKIN_BENCH_H

#include <stdint.h>

/* Keeps the compiler from merging, moving or dropping what stands before it in a loop. */
#define BENCH_BARRIER() __asm__ volatile("" ::: "memory")

/* A case is a loop of its own around the call, so that nothing but the call is in it: no call through a pointer. */
#define BENCH_CASE(function, ...)                                              \
	static void function(int calls)                                        \
	{                                                                      \
		for (int i = 0; i < calls; i++) {                              \
			__VA_ARGS__;                                           \
			BENCH_BARRIER();                                       \
		}                                                              \
	}

/* A value of so many bytes, made by bench_setup(). */
enum { LONG_BYTES = 1000 };

struct bench_case {
	const char *name;
	void (*calls)(int calls);
	void (*prepare)(void); /* before each burst, outside the time taken; may be NULL */
};

/* Ended by a case without a name. The first one is empty: the loop alone. */
extern const struct bench_case bench_cases[];
void bench_setup(void);

/* The time stamp counter, ordered on both sides. */
uint64_t bench_ticks(void);
/* What some thousand additions take that keep all of a core busy: the more, the more somebody else uses it. */
double bench_core_ticks(void);
/* CLOCK_MONOTONIC. */
double bench_now_ns(void);
/* Binds the calling thread. */
void bench_pin(int cpu);
double bench_median(double *values, int count);

#endif
