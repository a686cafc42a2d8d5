/*
 * The cost of code that runs cold: two processes on one CPU answer each other over pipes, and each does a few things before
 * it writes. In a loop none of these things would cost anything worth mentioning. Here the kernel runs in between and replaces
 * the contents of the caches and the branch history. docs/adr/0007-reading-the-clock.md draws the conclusions.
 *
 *	gcc -O2 -Ibenches/c benches/c/cold.c benches/c/clock.c -o /tmp/cold && taskset -c 1 /tmp/cold
 *
 * Prints the cost of each thing compared with as many instructions that do nothing: the median of blocks taken in turns.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { ITERATIONS = 2000, TURNS = 200, MANY = 16, FEW = 8, SIDES = 2 };
enum { NOTHING, LINES, PAGES, PASSED, TAKEN, DIRECT, INDIRECT, CALLS, FAR_CALLS, WRITTEN_OUT, THINGS };

static const struct {
	const char *name;
	int each;
} things[THINGS] = {
	[LINES] = { "load from a line of its own", MANY },
	[PAGES] = { "load from a page of its own", MANY },
	[PASSED] = { "conditional jump, not taken", MANY },
	[TAKEN] = { "conditional jump, taken", MANY },
	[DIRECT] = { "direct jump", MANY },
	[INDIRECT] = { "indirect jump", MANY },
	[CALLS] = { "call and return, all in a few lines", FEW },
	[FAR_CALLS] = { "call and return, in lines of its own", FEW },
	[WRITTEN_OUT] = { "a span and two events, written out", 1 },
};

static volatile long memory[MANY * (4096 + 64) / sizeof(long)];
static uint64_t ring[1 << 17], head, ids;

#define LOADS(bytes)                                                       \
	do {                                                               \
		for (int i = 0; i < MANY; i++)                             \
			(void)memory[i * ((bytes) / (int)sizeof(long))];   \
	} while (0)
#define CODE(count, text) __asm__ volatile("test %%rsp, %%rsp\n.rept " #count "\n" text "\n.endr" : : : "rax", "memory", "cc")
/* Moves the stack pointer below the red zone, the bytes that functions use without reserving them. */
#define CODE_WITH_STACK(count, text) \
	__asm__ volatile("sub $128, %%rsp\n.rept " #count "\n" text "\n.endr\nadd $128, %%rsp" : : : "rax", "memory", "cc")

/* The bare record of an event: no library, no other thread, no check for room. */
static inline __attribute__((always_inline)) void event(uint64_t trace, uint64_t span, uint64_t name)
{
	uint64_t *record = ring + (head & (sizeof ring / sizeof *ring - 1));
	uint32_t low, high;

	record[2] = trace;
	record[3] = span;
	record[5] = name;
	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	record[1] = low | (uint64_t)high << 32;
	__asm__ volatile("" : : : "memory");
	head += 8;
}

static inline __attribute__((always_inline)) void before(int thing)
{
	switch (thing) {
	case NOTHING: CODE(16, "nopl 0(%%rax, %%rax, 1)"); break;
	case LINES: LOADS(64); break;
	case PAGES: LOADS(4096 + 64); break;
	case PASSED: CODE(16, "jz 1f\nnopl 0(%%rax)\n1:"); break;
	case TAKEN: CODE(16, "jnz 1f\nnopl 0(%%rax)\n1:"); break;
	case DIRECT: CODE(16, "jmp 1f\nnopl 0(%%rax)\n1:"); break;
	case INDIRECT: CODE(16, "lea 1f(%%rip), %%rax\njmp *%%rax\nnopl 0(%%rax)\n1:"); break;
	case CALLS: CODE_WITH_STACK(8, "call 1f\njmp 2f\n1: ret\n2:"); break;
	case FAR_CALLS: CODE_WITH_STACK(8, "call 1f\njmp 2f\n.p2align 5\n1: ret\n.p2align 5\n2:"); break;
	case WRITTEN_OUT: ids++; event(ids, ids, 1); break;
	}
}

static inline __attribute__((always_inline)) void after(int thing)
{
	if (thing == WRITTEN_OUT)
		event(ids, ids, 2);
}

static void put(int end, int thing)
{
	if (write(end, &thing, sizeof thing) != sizeof thing)
		exit(1);
}

static int get(int end)
{
	int thing;

	if (read(end, &thing, sizeof thing) != sizeof thing)
		exit(1);
	return thing;
}

static void serve(int in, int out)
{
	for (int thing = get(in); thing != THINGS; thing = get(in)) {
		before(thing);
		put(out, thing);
		after(thing);
	}
}

/* Nanoseconds per round trip. */
static double block(int thing, int in, int out)
{
	double start = bench_now_ns();

	for (int i = 0; i < ITERATIONS; i++) {
		before(thing);
		put(out, thing);
		get(in);
		after(thing);
	}
	return (bench_now_ns() - start) / ITERATIONS;
}

int main(void)
{
	static double cost[THINGS][TURNS];
	int requests[2], answers[2], status;

	if (pipe(requests) || pipe(answers))
		return 1;
	if (fork() == 0) {
		serve(requests[0], answers[1]);
		return 0;
	}
	for (int turn = 0; turn < TURNS; turn++) {
		for (int thing = LINES; thing < THINGS; thing++) {
			double nothing = block(NOTHING, answers[0], requests[1]);
			cost[thing][turn] = block(thing, answers[0], requests[1]) - nothing;
		}
		cost[NOTHING][turn] = block(NOTHING, answers[0], requests[1]);
	}
	put(requests[1], THINGS);
	wait(&status);
	printf("round trip\tns\t%.0f\n", bench_median(cost[NOTHING], TURNS));
	for (int thing = LINES; thing < THINGS; thing++)
		printf("%s\tns\t%.2f\n", things[thing].name, bench_median(cost[thing], TURNS) / things[thing].each / SIDES);
	return status ? 1 : 0;
}
