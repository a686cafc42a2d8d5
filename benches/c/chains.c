/*
 * What a reading of the clock waits for on this processor: rdtsc alone, and followed by a chain of loads, a chain of
 * additions or independent instructions. docs/adr/0007-reading-the-clock.md draws the conclusions.
 *
 *	gcc -O2 benches/c/chains.c -o /tmp/chains && taskset -c 1 /tmp/chains
 */
#include <stdio.h>
#include <time.h>

enum { CALLS = 500000, RUNS = 9 };

static unsigned long cell[8] __attribute__((aligned(64)));

static double now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

#define FIVE(text) text text text text text
#define LOAD "mov (%0,%%r8),%%r8\n"
#define ADD "add $1,%%r8\n"
#define NOP "nop\n"
/* Four independent additions. */
#define FOUR "add $1,%%r8\nadd $1,%%r9\nadd $1,%%r10\nadd $1,%%r11\n"

#define MEASURE(name, code)                                                                        \
	do {                                                                                       \
		double best = 1e9;                                                                 \
		for (int run = 0; run < RUNS; run++) {                                             \
			double start = now_ns();                                                   \
			for (int i = 0; i < CALLS; i++)                                            \
				__asm__ volatile("xor %%r8d,%%r8d\n" code                          \
						 : : "r"(cell)                                      \
						 : "rax", "rdx", "r8", "r9", "r10", "r11", "memory"); \
			double one = (now_ns() - start) / CALLS;                                   \
			best = one < best ? one : best;                                            \
		}                                                                                  \
		printf("%s\tns\t%.2f\n", name, best);                                              \
	} while (0)

int main(void)
{
	MEASURE("rdtsc", "rdtsc\n");
	MEASURE("10 loads in a row", FIVE(LOAD LOAD));
	MEASURE("rdtsc + 5 loads in a row", "rdtsc\n" FIVE(LOAD));
	MEASURE("rdtsc + 10 loads in a row", "rdtsc\n" FIVE(LOAD LOAD));
	MEASURE("rdtsc + 20 loads in a row", "rdtsc\n" FIVE(LOAD LOAD LOAD LOAD));
	MEASURE("rdtsc + 10 additions in a row", "rdtsc\n" FIVE(ADD ADD));
	MEASURE("80 additions by themselves", FIVE(FOUR FOUR FOUR FOUR));
	MEASURE("rdtsc + 40 additions by themselves", "rdtsc\n" FIVE(FOUR FOUR));
	MEASURE("rdtsc + 80 additions by themselves", "rdtsc\n" FIVE(FOUR FOUR FOUR FOUR));
	MEASURE("rdtsc + 40 instructions that do nothing", "rdtsc\n" FIVE(NOP NOP NOP NOP NOP NOP NOP NOP));
	return 0;
}
