/*
 * The environment of a program: namespaces, limits, filters of system calls, small stacks, descriptors whose numbers are
 * reused. Each scenario (named by the first argument) records without any help for the library, and expects every
 * annotation to arrive.
 */
#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "expect.h"

/* The size of a small stack, such as fibers have. */
#define STACK_BYTES (16 << 10)
#define FIBERS 8
#define ANNOTATIONS 5

static const struct blkin_endpoint here = { "10.0.0.1", 1, "surroundings" };

static void record_quietly(struct blkin_trace *trace, const char *who)
{
	int i;

	CHECK(blkin_init_new_trace(trace, who, &here) == 0);
	for (i = 0; i < ANNOTATIONS; i++)
		BLKIN_TIMESTAMP(trace, NULL, who);
}

static void expect_all(const struct blkin_trace *trace, const char *who)
{
	int i;

	for (i = 0; i < ANNOTATIONS; i++)
		expect(&trace->info, who, "10.0.0.1", 1, "surroundings", who, "!");
}

static void record(const char *who)
{
	struct blkin_trace trace;

	record_quietly(&trace, who);
	expect_all(&trace, who);
}

static void wait_for_all(void)
{
	int status;

	while (wait(&status) > 0)
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(errno == ECHILD);
}

static void namespaces(void)
{
	static const struct {
		int flag;
		const char *name;
	} kinds[] = {
		{ CLONE_NEWPID, "pid" }, { CLONE_NEWIPC, "ipc" },  { CLONE_NEWNS, "mount" },
		{ CLONE_NEWNET, "net" }, { CLONE_NEWUTS, "uts" },  { CLONE_NEWUSER, "user" },
		{ CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS, "all" },
	};
	size_t i;

	record("outside");
	for (i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (fork() == 0) {
			CHECK(unshare(kinds[i].flag) == 0);
			record("on the border");
			if (fork() == 0) {
				record(kinds[i].name);
				_exit(0);
			}
			wait_for_all();
			_exit(0);
		}
	wait_for_all();
}

/* Only the first record needs descriptors. */
static void no_descriptors(void)
{
	struct blkin_trace before, after;
	struct rlimit limit, none;

	record_quietly(&before, "before");
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	none = limit;
	none.rlim_cur = 0;
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	record_quietly(&after, "after");
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	expect_all(&before, "before");
	expect_all(&after, "after");
}

static void close_all_and_open_own(struct stat *own)
{
	int fd;

	CHECK(syscall(SYS_close_range, 0, ~0U, 0) == 0);
	for (fd = 0; fd < 64; fd++)
		CHECK(open("/dev/null", O_RDWR) == fd);
	CHECK(fstat(0, own) == 0);
}

/* A daemon closes all descriptors, the library's too, and then gets their numbers for files of its own. */
static void reused_descriptors(void)
{
	struct stat own, then;
	int fd;

	record("before");
	usleep(50000); /* held by the consumer from here on */
	close_all_and_open_own(&own);
	record("after");
	if (fork() == 0) {
		record("child");
		exit(0); /* runs the library's code at exit */
	}
	wait_for_all();
	for (fd = 0; fd < 64; fd++)
		CHECK(fstat(fd, &then) == 0 && then.st_dev == own.st_dev && then.st_ino == own.st_ino);
}

/* Records as if another thread were changing a variable: the memory to which environ points may be invalid at that moment. */
static void record_without_environment(const char *who)
{
	char **environment = environ;
	struct blkin_trace trace;

	environ = mmap(NULL, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(environ != MAP_FAILED);
	record_quietly(&trace, who);
	environ = environment;
	expect_all(&trace, who);
}

/* The first record of a program does not read the environment, nor does that of a forked child. */
static void changing_environment(void)
{
	record_without_environment("first");
	if (fork() == 0) {
		record_without_environment("child");
		_exit(0);
	}
	wait_for_all();
}

/* Changes that a program makes to its environment count if it then calls blkin_init(). */
static void changed_environment(void)
{
	struct blkin_trace trace;

	CHECK(setenv("BLKIN_OFF", "1", 1) == 0);
	if (fork() == 0) {
		record("as it was when the library was loaded");
		_exit(0);
	}
	wait_for_all();
	CHECK(blkin_init() == 0);
	record_quietly(&trace, "off");
}

/* A daemon that clears its environment, as nginx does, is still traced as before, and so are its workers. */
static void cleared_environment(void)
{
	CHECK(unsetenv("BLKIN_SOCKET") == 0);
	CHECK(blkin_init() == 0);
	record("master");
	if (fork() == 0) {
		CHECK(blkin_init() == 0);
		record("worker");
		_exit(0);
	}
	wait_for_all();
}

/* Allocates a stack with an inaccessible page at its end. */
static void *stack(void)
{
	long page = sysconf(_SC_PAGESIZE);
	char *memory = mmap(NULL, STACK_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED && mprotect(memory, page, PROT_NONE) == 0);
	return memory + page;
}

static ucontext_t scheduler, fibers[FIBERS];
static struct blkin_trace traces[FIBERS];

/* Begins a span, and lets other fibers run between its annotations; it may continue in another thread. */
static void fiber(int number)
{
	int i;

	CHECK(blkin_init_new_trace(&traces[number], "fiber", &here) == 0);
	for (i = 0; i < ANNOTATIONS; i++) {
		BLKIN_TIMESTAMP(&traces[number], NULL, "fiber");
		swapcontext(&fibers[number], &scheduler);
	}
}

static void make_fiber(int number)
{
	CHECK(getcontext(&fibers[number]) == 0);
	fibers[number].uc_stack.ss_sp = stack();
	fibers[number].uc_stack.ss_size = STACK_BYTES;
	fibers[number].uc_link = &scheduler;
	makecontext(&fibers[number], (void (*)(void))fiber, 1, number);
}

static void *round_of_fibers(void *unused)
{
	int number;

	(void)unused;
	for (number = 0; number < FIBERS; number++)
		CHECK(swapcontext(&scheduler, &fibers[number]) == 0);
	return NULL;
}

static void fibers_on_small_stacks(void)
{
	pthread_t thread;
	int number, round;

	for (number = 0; number < FIBERS; number++)
		make_fiber(number);
	for (round = 0; round < ANNOTATIONS; round++) {
		CHECK(pthread_create(&thread, NULL, round_of_fibers, NULL) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	for (number = 0; number < FIBERS; number++)
		expect_all(&traces[number], "fiber");
}

static struct blkin_trace of_handler;

static void on_signal(int number)
{
	(void)number;
	record_quietly(&of_handler, "handler");
}

/* The first record of the program is made on the part of a small stack that a signal frame leaves. */
static void handler_on_a_small_stack(void)
{
	const stack_t small = { .ss_sp = stack(), .ss_size = STACK_BYTES };
	const struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };

	CHECK(sigaltstack(&small, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(raise(SIGUSR1) == 0);
	expect_all(&of_handler, "handler");
}

/* Until it execs, a vforked child shares its parent's memory, and the parent waits. */
static void in_a_vforked_child(void)
{
	static struct blkin_trace child;

	record("before");
	if (vfork() == 0) {
		record_quietly(&child, "vforked");
		_exit(0);
	}
	wait_for_all();
	expect_all(&child, "vforked");
	record("after");
}

static sigjmp_buf before_first_call;

static void leave(int number)
{
	siglongjmp(before_first_call, number);
}

/* From now on the kernel takes this action for one system call, and executes all others as usual. */
static void on_call(int call, unsigned int action)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof rules / sizeof *rules, rules };

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* A handler leaves the library's first call at its sched_getaffinity(), and never returns to it. */
static void first_call_left(void)
{
	const struct sigaction action = { .sa_handler = leave };
	struct blkin_trace trace;

	CHECK(sigaction(SIGSYS, &action, NULL) == 0);
	on_call(SYS_sched_getaffinity, SECCOMP_RET_TRAP);
	if (sigsetjmp(before_first_call, 1) == 0) {
		blkin_init();
		CHECK(!"left");
	}
	record_quietly(&trace, "left");
}

/* As before Linux 5.1, which has no seal against future writers. */
static void old_kernel(void)
{
	on_call(SYS_fcntl, SECCOMP_RET_ERRNO | EINVAL);
	CHECK(blkin_init() == 0);
}

#ifdef FILTERED_CALLS
#define MOST_CALLS 64

/* From now on every system call that is not in this list kills the program. */
static void filter(const int *allowed, size_t count)
{
	struct sock_filter rules[2 * MOST_CALLS + 2] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	const struct sock_fprog program = { (unsigned short)(2 * count + 2), rules };
	size_t i;

	CHECK(count <= MOST_CALLS);
	for (i = 0; i < count; i++) {
		rules[2 * i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
		rules[2 * i + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	rules[2 * count + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* Only the calls that docs/deploy.md lists (FILTERED_CALLS), and those that this program itself needs, are allowed. */
static void filtered(void)
{
	static const int allowed[] = { FILTERED_CALLS SYS_openat, SYS_write, SYS_exit_group };

	filter(allowed, sizeof allowed / sizeof *allowed);
	record("filtered");
}

/* After blkin_init(), only the calls that docs/deploy.md lists for later moments (LATER_CALLS) are allowed. */
static void filtered_later(void)
{
	static const int allowed[] = { LATER_CALLS SYS_openat, SYS_write, SYS_exit_group };

	CHECK(blkin_init() == 0);
	filter(allowed, sizeof allowed / sizeof *allowed);
	record("filtered later");
}

/* Each call that docs/deploy.md lists fails with an error, one at a time. None of these errors does any harm. */
static void answered_with_errors(void)
{
	static const int calls[] = { FILTERED_CALLS }, errors[] = { EPERM, ENOSYS };
	struct blkin_trace trace;
	size_t i;

	for (i = 0; i < 2 * sizeof calls / sizeof *calls; i++) {
		if (fork() == 0) {
			on_call(calls[i / 2], SECCOMP_RET_ERRNO | (unsigned int)errors[i % 2]);
			record_quietly(&trace, "answered");
			exit(0);
		}
		wait_for_all();
	}
}
#endif

/* A set-user-ID program: the consumer named in its caller's environment must not receive its records. */
static void privileged(void)
{
	struct blkin_trace trace;

	CHECK(geteuid() != getuid());
	record_quietly(&trace, "privileged");
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		{ "namespaces", namespaces },
		{ "no-descriptors", no_descriptors },
		{ "reused-descriptors", reused_descriptors },
		{ "changing-environment", changing_environment },
		{ "changed-environment", changed_environment },
		{ "cleared-environment", cleared_environment },
		{ "fibers", fibers_on_small_stacks },
		{ "handler", handler_on_a_small_stack },
		{ "vfork", in_a_vforked_child },
		{ "first-call-left", first_call_left },
		{ "old-kernel", old_kernel },
#ifdef FILTERED_CALLS
		{ "filtered", filtered },
		{ "filtered-later", filtered_later },
		{ "answered", answered_with_errors },
#endif
		{ "privileged", privileged },
	};
	size_t i;

	for (i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
		if (argc > 1 && !strcmp(argv[1], scenarios[i].name)) {
			scenarios[i].run();
			return 0;
		}
	fprintf(stderr, "unknown scenario\n");
	return 2;
}
