/*
 * Records 10^6 annotations in the steady state and prints how many allocations that made. The harness counts the system
 * calls between the two marks on stderr with strace. The program is pinned to one CPU, so that it uses no new slot on the
 * way. It begins when the harness says on stdin that consumerd is attached, because before that a full ring makes it offer
 * itself. Until then it records without a pause, so that consumerd is awake.
 */
#define _GNU_SOURCE
#include <blkin/zipkin_c.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#define RECORDS 1000000

/* glibc's own allocator, which the interposed one below calls. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static volatile long allocations;

void *malloc(size_t size) { allocations++; return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { allocations++; return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { allocations++; return __libc_realloc(old, size); }
void *aligned_alloc(size_t alignment, size_t size) { allocations++; return __libc_memalign(alignment, size); }
int posix_memalign(void **out, size_t alignment, size_t size)
{
	allocations++;
	*out = __libc_memalign(alignment, size);
	return *out ? 0 : 12;
}
void free(void *pointer) { __libc_free(pointer); }

static void record(long times)
{
	struct blkin_endpoint endpoint;
	struct blkin_trace trace, child;
	char value[32] = "value 0";

	blkin_init_endpoint(&endpoint, "127.0.0.1", 1, "steady");
	for (long i = 0; i < times; i += 4) {
		value[6] = '0' + i / 4 % 10;
		blkin_init_new_trace(&trace, "root", &endpoint);
		blkin_init_child(&child, &trace, NULL, "child");
		BLKIN_TIMESTAMP(&child, &endpoint, "event");
		BLKIN_KEYVAL_STRING(&child, &endpoint, "key", value);
		BLKIN_KEYVAL_INTEGER(&child, &endpoint, "number", i);
		BLKIN_TIMESTAMP(&trace, &endpoint, "done");
	}
}

static void mark(const char *text, size_t length)
{
	if (write(STDERR_FILENO, text, length) < 0)
		_exit(1);
}

static int may_begin(void)
{
	struct pollfd input = { STDIN_FILENO, POLLIN, 0 };

	return poll(&input, 1, 0) == 1;
}

int main(void)
{
	cpu_set_t one;
	long before;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	if (sched_setaffinity(0, sizeof(one), &one) || blkin_init())
		return 1;
	do
		record(10000);
	while (!may_begin());
	before = allocations;
	mark("begin\n", 6);
	record(RECORDS);
	mark("end\n", 4);
	printf("allocations %ld\n", allocations - before);
	return 0;
}
