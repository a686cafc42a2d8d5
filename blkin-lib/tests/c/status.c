/* blkin_status() before and after the start of tracing, in forked children, and where it may make no system call. */
#include <errno.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "expect.h"

static const struct blkin_endpoint here = { "10.0.0.1", 8080, "here" };

/* In a child that is killed by any system call but read, write and exit. */
static void makes_no_system_call(int expected)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		if (expected != BLKIN_STATUS_NOT_STARTED)
			blkin_init();
		if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0)
			_exit(2);
		/* Not _exit(), which is exit_group. */
		syscall(SYS_exit, blkin_status() != expected);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void record_one(void)
{
	struct blkin_trace trace;

	CHECK(blkin_init_new_trace(&trace, "name", &here) == 0);
	BLKIN_TIMESTAMP(&trace, NULL, "event");
	CHECK(blkin_status() == BLKIN_STATUS_TRACING);
	expect(&trace.info, "name", "10.0.0.1", 8080, "here", "event", "!");
}

/* No call but the first record starts tracing. */
static void tracing(void)
{
	record_one();
	makes_no_system_call(BLKIN_STATUS_NOT_STARTED);
	makes_no_system_call(BLKIN_STATUS_TRACING);
}

static void off(void)
{
	struct blkin_trace trace;

	CHECK(blkin_init_new_trace(&trace, "name", &here) == 0 && trace.info.trace_id == 0);
	CHECK(blkin_status() == BLKIN_STATUS_OFF);
	makes_no_system_call(BLKIN_STATUS_OFF);
}

/* Once descriptors are free again, blkin_init() starts what could not be started. */
static void without(void)
{
	struct rlimit files, none;

	CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
	none = files;
	none.rlim_cur = 0;
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	CHECK(blkin_init() == 0 && blkin_status() == BLKIN_STATUS_WITHOUT);
	makes_no_system_call(BLKIN_STATUS_WITHOUT);
	CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
	CHECK(blkin_status() == BLKIN_STATUS_WITHOUT);
	CHECK(blkin_init() == 0);
	record_one();
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	errno = 77;
	CHECK(blkin_status() == BLKIN_STATUS_NOT_STARTED && blkin_status() == BLKIN_STATUS_NOT_STARTED && errno == 77);
	if (!strcmp(argv[1], "tracing"))
		tracing();
	else if (!strcmp(argv[1], "off"))
		off();
	else
		without();
	return 0;
}
