/*
 * What the library does when something is wrong with tracing, and when nobody can be told of it either: nothing. No
 * signal, no wait, nothing of the program's own taken away. Run with a BLKIN_SOCKET at which nobody listens, so that
 * there is something to say at the end.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "expect.h"

/* Long enough for any machine; a child that waits is ended by SIGALRM. */
#define MOST_SECONDS 20

static const struct blkin_endpoint here = { "10.0.0.1", 1, "unharmed" };

static void be_standard_error(int fd)
{
	CHECK(dup2(fd, STDERR_FILENO) == STDERR_FILENO);
}

static void closed_pipe(void)
{
	int ends[2];

	CHECK(pipe(ends) == 0);
	be_standard_error(ends[1]);
	close(ends[0]);
}

static void closed_socket(void)
{
	int ends[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	be_standard_error(ends[1]);
	close(ends[0]);
}

static void fill(int fd)
{
	char bytes[4096] = { 0 };

	CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	while (write(fd, bytes, sizeof bytes) > 0)
		;
	CHECK(fcntl(fd, F_SETFL, 0) == 0);
}

static void full_pipe(void)
{
	int ends[2];

	CHECK(pipe(ends) == 0);
	fill(ends[1]);
	be_standard_error(ends[1]);
}

static void full_socket(void)
{
	int ends[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	fill(ends[1]);
	be_standard_error(ends[1]);
}

static void closed(void)
{
	close(STDERR_FILENO);
}

/* A background job whose standard error is a terminal that stops such jobs when they write to it. */
static void background_job(void)
{
	struct termios settings;
	int terminal, status;
	pid_t job;

	terminal = posix_openpt(O_RDWR | O_NOCTTY);
	CHECK(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
	CHECK(setsid() > 0);
	/* The first terminal that a session's leader opens is the session's. */
	be_standard_error(open(ptsname(terminal), O_RDWR));
	CHECK(tcgetattr(STDERR_FILENO, &settings) == 0);
	settings.c_lflag |= TOSTOP;
	CHECK(tcsetattr(STDERR_FILENO, TCSANOW, &settings) == 0);
	job = fork();
	if (job == 0) {
		CHECK(setpgid(0, 0) == 0);
		return;
	}
	CHECK(job > 0 && waitpid(job, &status, WUNTRACED) == job);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static void limit_files(rlim_t bytes)
{
	const struct rlimit limit = { bytes, bytes };

	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void no_files(void)
{
	limit_files(0);
}

/* The control page fits, the segment does not. */
static void small_files(void)
{
	limit_files(512 << 10);
}

static void no_descriptors(void)
{
	const struct rlimit none = { 0, 0 };

	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
}

/* As much as the program has, and a little more, but no room for a ring. */
static struct rlimit of_memory(void)
{
	unsigned long pages;
	FILE *statm = fopen("/proc/self/statm", "r");

	CHECK(statm != NULL && fscanf(statm, "%lu", &pages) == 1 && fclose(statm) == 0);
	return (struct rlimit){ pages * 4096 + (256 << 10), pages * 4096 + (256 << 10) };
}

static void little_memory(void)
{
	const struct rlimit limit = of_memory();

	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

/* A program that wants all of its memory to be locked may lock no more than it has. */
static void little_locked_memory(void)
{
	const struct rlimit limit = of_memory();

	CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	CHECK(getuid() != 0 || setresuid(65534, 65534, 65534) == 0);
	CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
}

/* Whoever blocks a signal waits for it, or means to meet it later. */
static void own_signals_wait(void)
{
	sigset_t set;

	closed_pipe();
	limit_files(0);
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	sigaddset(&set, SIGXFSZ);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	CHECK(raise(SIGPIPE) == 0 && raise(SIGXFSZ) == 0);
}

/* A bit for each signal that is blocked, and one for each that waits. */
static void signals(uint64_t *blocked, uint64_t *waiting)
{
	sigset_t mask, pending;
	int signal;

	CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && sigpending(&pending) == 0);
	*blocked = *waiting = 0;
	for (signal = 1; signal < 32; signal++) {
		*blocked |= (uint64_t)(sigismember(&mask, signal) == 1) << signal;
		*waiting |= (uint64_t)(sigismember(&pending, signal) == 1) << signal;
	}
}

static void record(void)
{
	struct blkin_trace trace;
	uint64_t blocked, waiting, blocked_then, waiting_then;

	signals(&blocked, &waiting);
	CHECK(blkin_init_new_trace(&trace, "request", &here) == 0);
	BLKIN_TIMESTAMP(&trace, NULL, "event");
	signals(&blocked_then, &waiting_then);
	CHECK(blocked_then == blocked && waiting_then == waiting);
}

int main(void)
{
	static void (*const circumstances[])(void) = {
		closed_pipe, closed_socket, full_pipe, full_socket, closed, no_files, small_files, no_descriptors,
		little_memory, little_locked_memory, own_signals_wait, background_job,
	};
	size_t i;
	int status;

	signal(SIGPIPE, SIG_DFL);
	signal(SIGXFSZ, SIG_DFL);
	for (i = 0; i < sizeof circumstances / sizeof *circumstances; i++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(MOST_SECONDS);
			circumstances[i]();
			record();
			/* By way of the library's last word. */
			exit(0);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
			printf("circumstance %zu: wait status %#x\n", i, (unsigned)status);
			return 1;
		}
	}
	return 0;
}
