/*
 * In the steady state 10^6 records make no system call and no allocation: after some warm-up any system call except
 * exit_group kills this process, and any call of the allocator is counted. The test runs it with rings that hold everything
 * (BLKIN_RING_BYTES), and with rings that overflow at once.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "expect.h"

#define RECORDS 1000000L
#define WARM_UP 1000L

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

static long allocations;

void *malloc(size_t bytes)
{
	allocations++;
	return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
	allocations++;
	return __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes)
{
	allocations++;
	return __libc_realloc(old, bytes);
}

void free(void *old)
{
	if (old)
		allocations++;
	__libc_free(old);
}

static void stay_on_one_cpu(void)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

static void forbid_system_calls(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { sizeof rules / sizeof *rules, rules };

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void record_one(const struct blkin_trace *root, const struct blkin_endpoint *here, long i)
{
	struct blkin_trace child;

	if (i % 32 == 0) { /* two grains each: the largest ring holds 1,048,576 */
		BLKIN_KEYVAL_STRING(root, NULL, "string", "a value");
	} else if (i % 3 == 0) {
		BLKIN_TIMESTAMP(root, NULL, "event");
	} else if (i % 3 == 1) {
		BLKIN_KEYVAL_INTEGER(root, here, "integer", i);
	} else {
		blkin_init_child(&child, root, here, "child");
		BLKIN_TIMESTAMP(&child, NULL, "end");
	}
}

int main(void)
{
	const struct blkin_endpoint here = { "10.0.0.1", 1, "steady" };
	struct blkin_trace root, unsampled = { .name = "never" };
	long i;

	stay_on_one_cpu();
	blkin_init_new_trace(&root, "root", &here);
	for (i = 0; i < WARM_UP; i++)
		record_one(&root, &here, i);
	expect_count(WARM_UP + RECORDS);
	usleep(100000); /* for the consumer to attach: after that the library makes no more offers */
	forbid_system_calls();
	allocations = 0;
	errno = 77;
	for (i = 0; i < RECORDS; i++) {
		record_one(&root, &here, i);
		record_one(&unsampled, &here, i);
	}
	_exit(allocations == 0 && errno == 77 ? 0 : 1);
}
