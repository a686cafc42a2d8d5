/*
 * Events in the life of a daemon: it forks, execs, closes every descriptor, drops root, exits, ends threads, handles signals,
 * moves to other CPUs, is killed.
 * Each scenario (named by the first argument) records meanwhile, without any help for the library, and expects every
 * annotation to arrive.
 */
#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "expect.h"

static const struct blkin_endpoint here = { "10.0.0.1", 1, "lifecycle" };

/* Starts a trace and records this many annotations on it. */
static void record(const char *who, int count)
{
	struct blkin_trace trace;
	int i;

	CHECK(blkin_init_new_trace(&trace, who, &here) == 0);
	for (i = 0; i < count; i++) {
		BLKIN_TIMESTAMP(&trace, NULL, who);
		expect(&trace.info, who, "10.0.0.1", 1, "lifecycle", who, "!");
	}
}

static void wait_for_all(void)
{
	int status;

	while (wait(&status) > 0)
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(errno == ECHILD);
}

static void forks(void)
{
	int i;

	record("parent", 5);
	for (i = 0; i < 3; i++)
		if (fork() == 0) {
			record("child", 5);
			if (fork() == 0)
				record("grandchild", 5);
			else
				wait_for_all();
			_exit(0);
		}
	record("parent", 5);
	wait_for_all();
	record("parent", 5);
}

static void fork_before_first_record(void)
{
	CHECK(blkin_init() == 0);
	if (fork() == 0) {
		record("child", 5);
		_exit(0);
	}
	wait_for_all();
}

/* A span continues in the forked child: same ids, another process. */
static void fork_within_a_span(void)
{
	struct blkin_trace trace, child;

	blkin_init_new_trace(&trace, "span", &here);
	BLKIN_TIMESTAMP(&trace, NULL, "begin");
	expect(&trace.info, "span", "10.0.0.1", 1, "lifecycle", "begin", "!");
	if (fork() == 0) {
		blkin_init_child(&child, &trace, NULL, "forked");
		BLKIN_TIMESTAMP(&child, NULL, "step");
		expect(&child.info, "forked", "10.0.0.1", 1, "lifecycle", "step", "!");
		BLKIN_TIMESTAMP(&trace, NULL, "end");
		expect(&trace.info, "span", "10.0.0.1", 1, "lifecycle", "end", "!");
		_exit(0);
	}
	wait_for_all();
}

static void double_fork(void)
{
	record("starter", 5);
	if (fork() == 0) {
		setsid();
		if (fork() == 0)
			record("daemon", 5);
		_exit(0);
	}
	wait_for_all();
}

static void exec_again(char *self)
{
	record("before exec", 5);
	execl(self, self, "after-exec", (char *)NULL);
	CHECK(!"exec");
}

static void fork_and_exec(char *self)
{
	record("parent", 5);
	if (fork() == 0)
		exec_again(self);
	wait_for_all();
	record("parent", 5);
}

static void close_everything(void)
{
	CHECK(syscall(SYS_close_range, 0, ~0U, 0) == 0);
}

static void daemonise(void)
{
	record("starter", 5);
	if (fork() == 0) {
		setsid();
		if (fork() == 0) {
			close_everything();
			CHECK(open("/dev/null", O_RDWR) == 0 && dup(0) == 1 && dup(0) == 2);
			record("daemon", 5);
			CHECK(fcntl(0, F_GETFD) >= 0 && fcntl(2, F_GETFD) >= 0);
		}
		_exit(0);
	}
	wait_for_all();
}

static void close_descriptors_of_a_live_segment(void)
{
	record("before", 5);
	usleep(50000); /* held by the consumer from here on */
	close_everything();
	record("after", 5);
}

/* The library does not take descriptors 0 to 2, even if the program has closed them before. */
static void standard_descriptors_stay_free(void)
{
	close(0);
	close(1);
	close(2);
	record("without stdio", 5);
	_exit(open("/dev/null", O_RDWR) == 0 && dup(0) == 1 && dup(0) == 2 ? 0 : 1);
}

static void drop_root(void)
{
	CHECK(setgroups(0, NULL) == 0);
	CHECK(setresgid(65534, 65534, 65534) == 0);
	CHECK(setresuid(65534, 65534, 65534) == 0);
}

static void setuid_after_first_record(void)
{
	record("as root", 5);
	drop_root();
	record("as nobody", 5);
	if (fork() == 0) {
		record("child of nobody", 5);
		_exit(0);
	}
	wait_for_all();
}

static void setuid_before_first_record(void)
{
	drop_root();
	record("as nobody", 5);
}

static void record_at_exit(void)
{
	record("at exit", 5);
}

__attribute__((destructor)) static void record_in_destructor(void)
{
	if (getenv("EXPECT_DESTRUCTOR"))
		record("destructor", 5);
}

/* Runs before the library's own constructor, if the library is linked statically. */
__attribute__((constructor(101))) static void record_in_constructor(void)
{
	if (getenv("EXPECT_CONSTRUCTOR"))
		record("constructor", 5);
}

static void at_exit(void)
{
	setenv("EXPECT_DESTRUCTOR", "1", 1);
	CHECK(atexit(record_at_exit) == 0);
}

static struct blkin_trace shared;
static volatile sig_atomic_t signals;

static void on_signal(int number)
{
	(void)number;
	BLKIN_TIMESTAMP(&shared, NULL, "signal");
	BLKIN_KEYVAL_INTEGER(&shared, NULL, "signals", signals);
	signals++;
}

/* Handlers record while they interrupt records, from the first record on. */
static void signal_handlers(void)
{
	const struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	long recorded = 0;

	shared.name = "signals";
	shared.endpoint = &here;
	shared.info.trace_id = shared.info.span_id = 1;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	while (signals < 500) {
		BLKIN_TIMESTAMP(&shared, NULL, "main");
		recorded++;
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	expect_count(recorded + 2L * signals);
}

static pthread_key_t on_thread_exit;

static void record_at_thread_exit(void *who)
{
	record(who, 2);
}

static void *thread(void *unused)
{
	static char who[] = "thread exit";

	(void)unused;
	CHECK(pthread_setspecific(on_thread_exit, who) == 0);
	record("thread", 20);
	return NULL;
}

static void threads(void)
{
	pthread_t ids[8];
	int round;
	size_t i;

	/* Without this call, records of other threads may be lost (and counted) while the first record creates the segment. */
	CHECK(blkin_init() == 0);
	CHECK(pthread_key_create(&on_thread_exit, record_at_thread_exit) == 0);
	for (round = 0; round < 5; round++) {
		for (i = 0; i < 8; i++)
			CHECK(pthread_create(&ids[i], NULL, thread, NULL) == 0);
		for (i = 0; i < 8; i++)
			CHECK(pthread_join(ids[i], NULL) == 0);
	}
}

static void *flooding_thread(void *calls)
{
	struct blkin_trace trace;
	long i;

	blkin_init_new_trace(&trace, "flood", &here);
	for (i = 0; i < 50000; i++)
		BLKIN_KEYVAL_INTEGER(&trace, NULL, "i", i);
	__atomic_add_fetch((long *)calls, 50000, __ATOMIC_RELAXED);
	return NULL;
}

enum { SHAPES = 5 };

/* Makes one record of each form: with looked-up names and with texts, with a time and with a value, of one grain and of several. */
static void record_each_shape(const struct blkin_span *span, long number)
{
	static const char text[] = "a text of more than one grain, so that copying it takes a while: "
				   "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789";

	BLKIN_EVENT(span, "event");
	BLKIN_INTEGER(span, "number", number);
	BLKIN_TIMESTAMP(&span->trace, NULL, "event");
	BLKIN_KEYVAL_INTEGER(&span->trace, NULL, "number", number);
	BLKIN_KEYVAL_STRING(&span->trace, NULL, "text", text);
}

/* Moves the calling thread to the next CPU that it may run on. */
static void migrate(const cpu_set_t *allowed, int *cpu)
{
	cpu_set_t one;

	do
		*cpu = (*cpu + 1) % CPU_SETSIZE;
	while (!CPU_ISSET(*cpu, allowed));
	CPU_ZERO(&one);
	CPU_SET(*cpu, &one);
	CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

static void new_span(struct blkin_span *span, const char *name)
{
	struct blkin_trace trace;

	CHECK(blkin_init_new_trace(&trace, name, &here) == 0);
	CHECK(blkin_span_of(span, &trace) == 0);
}

static void *migrating_thread(void *calls)
{
	struct blkin_span span;
	cpu_set_t allowed;
	int cpu = 0;
	long i;

	CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
	new_span(&span, "migrating");
	for (i = 0; i < 20000; i++) {
		if (i % 4 == 0)
			migrate(&allowed, &cpu);
		record_each_shape(&span, i);
	}
	__atomic_add_fetch((long *)calls, SHAPES * 20000, __ATOMIC_RELAXED);
	return NULL;
}

/* Threads move from CPU to CPU while other threads record there. */
static void migrations(void)
{
	pthread_t ids[4];
	long calls = 0;
	size_t i;

	CHECK(blkin_init() == 0);
	for (i = 0; i < 4; i++)
		CHECK(pthread_create(&ids[i], NULL, migrating_thread, &calls) == 0);
	for (i = 0; i < 4; i++)
		CHECK(pthread_join(ids[i], NULL) == 0);
	expect_count(calls);
}

static int forked_enough;

/* Makes at least 100 rounds of records, so that it also records when it runs in a child. */
static void *thread_beside_forks(void *calls)
{
	char name[32];
	struct blkin_span span;
	long i;

	for (i = 0; i < 100 || !__atomic_load_n(&forked_enough, __ATOMIC_ACQUIRE); i++) {
		/* A known text, or a new one each time, so that the table of names is in any state at a fork. */
		snprintf(name, sizeof name, "name %ld", i);
		new_span(&span, i % 2 == 0 ? "beside forks" : name);
		record_each_shape(&span, i);
	}
	__atomic_add_fetch((long *)calls, SHAPES * i, __ATOMIC_RELAXED);
	return NULL;
}

/* Children are forked while other threads are recording, and start threads themselves. */
static void forks_beside_threads(void)
{
	pthread_t ids[4];
	long calls = 0;
	size_t i;

	CHECK(blkin_init() == 0);
	for (i = 0; i < 4; i++)
		CHECK(pthread_create(&ids[i], NULL, thread_beside_forks, &calls) == 0);
	for (i = 0; i < 100; i++)
		if (fork() == 0) {
			pthread_t id;
			long childs_calls = 0;

			forked_enough = 1;
			CHECK(pthread_create(&id, NULL, thread_beside_forks, &childs_calls) == 0);
			CHECK(pthread_join(id, NULL) == 0);
			expect_count(childs_calls);
			_exit(0);
		} else {
			wait_for_all();
		}
	__atomic_store_n(&forked_enough, 1, __ATOMIC_RELEASE);
	for (i = 0; i < 4; i++)
		CHECK(pthread_join(ids[i], NULL) == 0);
	expect_count(calls);
}

static void *endless_thread(void *unused)
{
	struct blkin_span span;
	long i;

	(void)unused;
	new_span(&span, "killed");
	for (i = 0;; i++)
		record_each_shape(&span, i);
	return NULL;
}

/* Records in four threads until the process is killed; writes to the pipe when it has begun. */
static void endless(int begun)
{
	pthread_t id;
	int i;

	CHECK(blkin_init() == 0);
	for (i = 0; i < 3; i++)
		CHECK(pthread_create(&id, NULL, endless_thread, NULL) == 0);
	CHECK(write(begun, "!", 1) == 1);
	endless_thread(NULL);
}

/* Twenty processes are killed while they record, each after a different time. */
static void killed(void)
{
	int i, status, begun[2];
	pid_t child;
	char byte;

	CHECK(pipe(begun) == 0);
	for (i = 0; i < 20; i++) {
		child = fork();
		if (child == 0)
			endless(begun[1]);
		CHECK(read(begun[0], &byte, 1) == 1);
		usleep(2000 + 313 * i);
		CHECK(kill(child, SIGKILL) == 0);
		CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	}
}

/* Many threads of several processes record more than the rings hold: the counts are still exact. */
static void flood(void)
{
	int processes;
	size_t i;

	for (processes = 0; processes < 3; processes++)
		if (fork() == 0) {
			pthread_t ids[6];
			long calls = 0;

			for (i = 0; i < 6; i++)
				CHECK(pthread_create(&ids[i], NULL, flooding_thread, &calls) == 0);
			for (i = 0; i < 6; i++)
				CHECK(pthread_join(ids[i], NULL) == 0);
			expect_count(calls);
			_exit(0);
		}
	wait_for_all();
}

/* The first record of a program may come from a handler, and keeps errno like any other. */
static void on_first_signal(int number)
{
	(void)number;
	errno = 77;
	BLKIN_TIMESTAMP(&shared, NULL, "first");
	_exit(errno == 77 ? 0 : 1);
}

static void first_record_in_a_handler(void)
{
	shared.name = "first";
	shared.endpoint = &here;
	shared.info.trace_id = shared.info.span_id = 1;
	expect(&shared.info, "first", "10.0.0.1", 1, "lifecycle", "first", "!");
	signal(SIGUSR1, on_first_signal);
	raise(SIGUSR1);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		{ "forks", forks },
		{ "fork-before-first-record", fork_before_first_record },
		{ "fork-within-a-span", fork_within_a_span },
		{ "double-fork", double_fork },
		{ "daemonise", daemonise },
		{ "close-descriptors", close_descriptors_of_a_live_segment },
		{ "standard-descriptors", standard_descriptors_stay_free },
		{ "setuid-after", setuid_after_first_record },
		{ "setuid-before", setuid_before_first_record },
		{ "atexit", at_exit },
		{ "signals", signal_handlers },
		{ "first-in-handler", first_record_in_a_handler },
		{ "threads", threads },
		{ "migrations", migrations },
		{ "forks-beside-threads", forks_beside_threads },
		{ "killed", killed },
		{ "flood", flood },
	};
	const char *wanted = argc > 1 ? argv[1] : "";
	size_t i;

	if (!strcmp(wanted, "exec"))
		fork_and_exec(argv[0]);
	if (!strcmp(wanted, "after-exec"))
		record("after exec", 5);
	for (i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
		if (!strcmp(wanted, scenarios[i].name))
			scenarios[i].run();
	return 0;
}
