/*
 * When tracing fails, even when the failure cannot be reported, the library does no harm to the program: it raises no signal,
 * does not wait, takes nothing that belongs to the program and does not use the allocator. Run with a BLKIN_SOCKET at which
 * nobody listens, so that there is something to report at the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "expect.h"

/* Long enough for any machine; SIGALRM ends a child that hangs. */
#define MOST_SECONDS 20

static const struct blkin_endpoint here = { "10.0.0.1", 1, "unharmed" };

extern void *__libc_malloc(size_t);

/* Set when allocations become forbidden: a handler that records may have interrupted an allocation, which holds the lock. */
static int no_allocation;

void *malloc(size_t bytes)
{
	if (no_allocation)
		abort();
	return __libc_malloc(bytes);
}

/* Looking up a symbol is forbidden too: another thread may be loading a library, and wait meanwhile for the one that records. */
void *dlsym(void *library, const char *name)
{
	(void)library;
	(void)name;
	abort();
}

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

/* The program's data file, and its log file. */
static int data_file, log_file;

static void written_to_a_file(void)
{
	be_standard_error(log_file);
}

/* A program that has closed its standard error gets descriptor 2 for the next file that it opens: here its data. */
static void data_in_its_place(void)
{
	be_standard_error(data_file);
}

/* Or the eventfd of an event loop. */
static int wakes;

static void wakes_in_its_place(void)
{
	be_standard_error(wakes);
}

/* Or a connection to another machine, which would take the library's message for a request. */
static int called_machine, caller;

static void call_in_its_place(void)
{
	be_standard_error(caller);
}

/* Or a connection to a service on this machine. */
static int service, client;

static void client_in_its_place(void)
{
	be_standard_error(client);
}

static void open_service(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	socklen_t length = sizeof address.sun_family;
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);

	/* The kernel chooses a name for the socket. */
	CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
	length = sizeof address;
	CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	client = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(connect(client, (struct sockaddr *)&address, length) == 0);
	service = accept(listener, NULL, NULL);
	CHECK(service >= 0 && close(listener) == 0);
}

/* Or a terminal emulator's side of a pseudo-terminal: a message there would be typed into the program that runs in it. */
static int emulator, typed_into;

static void emulator_in_its_place(void)
{
	be_standard_error(emulator);
}

/* Opens the files that will take the place of standard error. */
static void open_places(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t length = sizeof address;
	char log_path[32];
	int listener;

	data_file = memfd_create("data", MFD_CLOEXEC);
	snprintf(log_path, sizeof log_path, "/proc/self/fd/%d", memfd_create("log", MFD_CLOEXEC));
	log_file = open(log_path, O_WRONLY | O_CLOEXEC);
	wakes = eventfd(0, EFD_NONBLOCK);
	CHECK(data_file >= 0 && log_file >= 0 && wakes >= 0);
	emulator = posix_openpt(O_RDWR | O_NOCTTY);
	CHECK(emulator >= 0 && grantpt(emulator) == 0 && unlockpt(emulator) == 0);
	typed_into = open(ptsname(emulator), O_RDWR | O_NOCTTY | O_NONBLOCK);
	CHECK(typed_into >= 0);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	caller = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(caller, (struct sockaddr *)&address, length) == 0);
	called_machine = accept(listener, NULL, NULL);
	CHECK(called_machine >= 0 && close(listener) == 0);
	open_service();
}

/* Only the log has received a message. */
static void check_places(void)
{
	char byte;
	uint64_t count;

	CHECK(lseek(log_file, 0, SEEK_END) > 0);
	CHECK(lseek(data_file, 0, SEEK_END) == 0);
	CHECK(read(wakes, &count, sizeof count) < 0 && errno == EAGAIN);
	CHECK(read(typed_into, &byte, 1) < 0 && errno == EAGAIN);
	CHECK(recv(called_machine, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	CHECK(recv(service, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
}

/* A background job whose standard error is a terminal that stops background jobs when they write to it. */
static void background_job(void)
{
	struct termios settings;
	int terminal, status;
	pid_t job;

	terminal = posix_openpt(O_RDWR | O_NOCTTY);
	CHECK(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
	CHECK(setsid() > 0);
	/* The first terminal that a session leader opens becomes the session's terminal. */
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

/* Files may be large enough for the control page, but not for the segment. */
static void small_files(void)
{
	limit_files(512 << 10);
}

static void no_descriptors(void)
{
	const struct rlimit none = { 0, 0 };

	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
}

/* A limit just above the memory that the program has: there is no room for a ring. */
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

/* A program that locks all of its memory may lock hardly more than it has. */
static void little_locked_memory(void)
{
	const struct rlimit limit = of_memory();

	CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	CHECK(getuid() != 0 || setresuid(65534, 65534, 65534) == 0);
	CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
}

/* Mounts a new file system of this size, and returns its folder; -1 if that is not permitted. */
static int new_file_system(const char *size)
{
	int folder;

	if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		return -1;
	CHECK(mount("none", "/tmp", "tmpfs", 0, size) == 0);
	folder = open("/tmp", O_RDONLY | O_DIRECTORY);
	CHECK(folder >= 0 && umount2("/tmp", MNT_DETACH) == 0);
	return folder;
}

/* The folder for files that stand in for shared memory, and a pipe that passes on the descriptor of the filter's requests. */
static struct { int folder, listener[2]; } source;

/* Answers memfd_create() of another thread with a file of that folder, and lets F_ADD_SEALS seem to succeed. */
static void *give_files(void *unused)
{
	int listener;

	CHECK(read(source.listener[0], &listener, sizeof listener) == sizeof listener);
	for (;;) {
		struct seccomp_notif wanted;
		struct seccomp_notif_resp given;

		memset(&wanted, 0, sizeof wanted);
		memset(&given, 0, sizeof given);
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &wanted) != 0)
			return unused;
		given.id = wanted.id;
		if (wanted.data.nr == SYS_memfd_create)
			given.val = openat(source.folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		CHECK(given.val >= 0 && ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &given) == 0);
	}
}

/*
 * Limits shared memory to this size, which shows only when a page is first touched. This imitates vm.overcommit_memory = 2,
 * which would affect all programs of this machine.
 */
static void limit_shared_memory(const char *size)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_ADD_SEALS, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof rules / sizeof *rules, rules };
	pthread_t giver;
	int listener;

	source.folder = new_file_system(size);
	if (source.folder < 0)
		return;
	CHECK(pipe(source.listener) == 0 && pthread_create(&giver, NULL, give_files, NULL) == 0);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
	CHECK(listener >= 0 && write(source.listener[1], &listener, sizeof listener) == sizeof listener);
}

static void no_segment(void)
{
	limit_shared_memory("size=4k");
}

static void no_headers(void)
{
	limit_shared_memory("size=12k");
}

static void no_ring(void)
{
	limit_shared_memory("size=24k");
}

/* As in a sandbox that the program enters after blkin_init(): mprotect() fails, so no more memory can be made writable. */
static void no_more_access(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof rules / sizeof *rules, rules };

	CHECK(blkin_init() == 0);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* There is room for one ring, and for hardly anything else. */
static void no_names(void)
{
	limit_shared_memory("size=1048k");
}

/* The program has blocked signals that are pending, because it waits for them or will handle them later. */
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

/* Returns a bit for each blocked signal, and a bit for each pending signal. */
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

static void end_as_cancelled(void *unused)
{
	(void)unused;
	_exit(2);
}

/* This thread will end at the next cancellation point: no call of the library may be one. */
static void cancel_this_thread(void)
{
	static char is_set;
	pthread_key_t key;

	CHECK(pthread_key_create(&key, end_as_cancelled) == 0 && pthread_setspecific(key, &is_set) == 0);
	CHECK(pthread_cancel(pthread_self()) == 0);
}

static void record(void)
{
	struct blkin_trace trace;
	uint64_t blocked, waiting, blocked_then, waiting_then;
	/* Each text at an address of its own, and more of them than a page of names holds. */
	static char texts[1000][24];
	int i;

	for (i = 0; i < 1000; i++)
		snprintf(texts[i], sizeof texts[i], "text number %d", i);
	signals(&blocked, &waiting);
	cancel_this_thread();
	no_allocation = 1;
	errno = 77;
	CHECK(blkin_init_new_trace(&trace, "request", &here) == 0);
	BLKIN_TIMESTAMP(&trace, NULL, "event");
	for (i = 0; i < 1000; i++)
		BLKIN_TIMESTAMP(&trace, NULL, texts[i]);
	CHECK(errno == 77);
	signals(&blocked_then, &waiting_then);
	CHECK(blocked_then == blocked && waiting_then == waiting);
}

int main(void)
{
	static void (*const circumstances[])(void) = {
		closed_pipe, closed_socket, full_pipe, full_socket, closed, no_files, small_files, no_descriptors,
		little_memory, little_locked_memory, own_signals_wait, background_job, no_segment, no_headers, no_ring,
		no_names, no_more_access, written_to_a_file, data_in_its_place, wakes_in_its_place, call_in_its_place,
		emulator_in_its_place, client_in_its_place,
	};
	size_t i;
	int status;

	signal(SIGPIPE, SIG_DFL);
	signal(SIGXFSZ, SIG_DFL);
	open_places();
	for (i = 0; i < sizeof circumstances / sizeof *circumstances; i++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(MOST_SECONDS);
			circumstances[i]();
			record();
			/* Runs the library's code at exit. */
			exit(0);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
			printf("circumstance %zu: wait status %#x\n", i, (unsigned)status);
			return 1;
		}
	}
	check_places();
	return 0;
}
