/* What each file of cases provides for the harness: its cases, and a function to call once before any of them. */
#ifndef BLKIN_BENCH_H
#define BLKIN_BENCH_H

#include <stdint.h>

/* Keeps the compiler from merging, moving or dropping the statements before it in a loop. */
#define BENCH_BARRIER() __asm__ volatile("" ::: "memory")

/* Each case has its own loop around the call, so the loop contains no call through a pointer. */
#define BENCH_CASE(function, ...)                                              \
	static void function(int calls)                                        \
	{                                                                      \
		for (int i = 0; i < calls; i++) {                              \
			__VA_ARGS__;                                           \
			BENCH_BARRIER();                                       \
		}                                                              \
	}

/* The size of the long value that bench_setup() makes. */
enum { LONG_BYTES = 1000 };

struct bench_case {
	const char *name;
	void (*calls)(int calls);
	void (*prepare)(void); /* called before each burst, outside the measured time; may be NULL */
};

/* Terminated by a case without a name. The first case is empty: the loop alone. */
extern const struct bench_case bench_cases[];
void bench_setup(void);

/* The time stamp counter, ordered on both sides. */
uint64_t bench_ticks(void);
/* The time of some thousand additions that keep a whole core busy. It grows when somebody else uses the core too. */
double bench_core_ticks(void);
/* CLOCK_MONOTONIC. */
double bench_now_ns(void);
/* Binds the calling thread to a CPU. */
void bench_pin(int cpu);
double bench_median(double *values, int count);

#endif
