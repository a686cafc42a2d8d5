/*
 * "ids threads IDS": draws IDS ids, of roots and children, in more threads than there are CPUs. A timer of its own interrupts
 * each thread again and again, and its handler draws more. No two ids are equal, none is 0 or negative.
 * "ids traps": a trap after every instruction of the calls that draw ids. Its handler also draws, and forks a child that draws.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "expect.h"

enum { THREADS = 8, OFTEN_NS = 50000, FEWEST_SIGNALS = 10, A_DRAW = 2 };

static const struct blkin_endpoint here = { "10.0.0.1", 1, "ids" };

/* The ids of a root and of its child. */
static void draw(int64_t *drawn)
{
	struct blkin_trace root, child;

	CHECK(blkin_init_new_trace(&root, "root", &here) == 0);
	CHECK(blkin_init_child(&child, &root, NULL, "child") == 0);
	CHECK(root.info.trace_id == root.info.span_id && child.info.trace_id == root.info.span_id);
	CHECK(child.info.parent_span_id == root.info.span_id);
	drawn[0] = root.info.span_id;
	drawn[1] = child.info.span_id;
}

static int by_number(const void *one, const void *other)
{
	const int64_t *a = one, *b = other;

	return (*a > *b) - (*a < *b);
}

static void check_distinct(int64_t *ids, long count)
{
	long i;

	qsort(ids, (size_t)count, sizeof *ids, by_number);
	CHECK(count > 0 && ids[0] > 0);
	for (i = 1; i < count; i++)
		CHECK(ids[i - 1] != ids[i]);
	printf("%ld ids\n", count);
}

static long draws_each;
static __thread int64_t *own_ids;
static __thread volatile long draws;
static __thread volatile long signals;

/* Takes its place in the array first, so that a handler takes another one. */
static int draw_one_more(void)
{
	long place = __atomic_fetch_add(&draws, 1, __ATOMIC_RELAXED);

	if (place >= draws_each)
		return 0;
	draw(own_ids + place * A_DRAW);
	return 1;
}

static void on_timer(int unused)
{
	(void)unused;
	signals++;
	draw_one_more();
}

static void *drawing_thread(void *its_ids)
{
	const struct itimerspec often = { { 0, OFTEN_NS }, { 0, OFTEN_NS } };
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1 };
	timer_t timer;

	own_ids = its_ids;
	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
	CHECK(timer_settime(timer, 0, &often, NULL) == 0);
	while (draw_one_more())
		continue;
	CHECK(timer_delete(timer) == 0);
	CHECK(signals >= FEWEST_SIGNALS);
	return NULL;
}

static void by_threads(long count)
{
	const struct sigaction action = { .sa_handler = on_timer, .sa_flags = SA_RESTART };
	pthread_t threads[THREADS];
	int64_t *ids;
	long i;

	draws_each = count / THREADS / A_DRAW;
	count = draws_each * THREADS * A_DRAW;
	ids = calloc((size_t)count, sizeof *ids);
	CHECK(ids != NULL);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	for (i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, drawing_thread, ids + i * draws_each * A_DRAW) == 0);
	for (i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	check_distinct(ids, count);
}

#ifdef __x86_64__
enum { TRAP_FLAG = 0x100, MOST_DRAWS = 20000, FEWEST_DRAWS = 100 };

/* Shared with the children. */
static int64_t *all_ids;
static long all_draws;

static void draw_here(void)
{
	CHECK(all_draws < MOST_DRAWS);
	draw(all_ids + all_draws * A_DRAW);
	all_draws++;
}

static void on_trap(int unused)
{
	pid_t child;
	int status;

	(void)unused;
	draw_here();
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		draw_here();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	all_draws++;
}

/* The flags are changed below the red zone: the bytes under the stack pointer that functions use without reserving them. */
static void draw_with_traps(int64_t *drawn)
{
	__asm__ volatile("sub $128, %%rsp; pushf; orl %0, (%%rsp); popf; add $128, %%rsp" : : "i"(TRAP_FLAG) : "memory", "cc");
	draw(drawn);
	__asm__ volatile("sub $128, %%rsp; pushf; andl %0, (%%rsp); popf; add $128, %%rsp" : : "i"(~TRAP_FLAG) : "memory", "cc");
}

static void by_traps(void)
{
	const struct sigaction action = { .sa_handler = on_trap };
	int64_t trapped[A_DRAW];

	all_ids = mmap(NULL, (MOST_DRAWS + 1) * sizeof trapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(all_ids != MAP_FAILED);
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	/* The first draw seeds the generator. */
	draw_here();
	draw_with_traps(trapped);
	CHECK(all_draws >= FEWEST_DRAWS);
	memcpy(all_ids + all_draws * A_DRAW, trapped, sizeof trapped);
	check_distinct(all_ids, (all_draws + 1) * A_DRAW);
}
#endif

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "threads"))
		by_threads(atol(argv[2]));
#ifdef __x86_64__
	else if (argc > 1 && !strcmp(argv[1], "traps"))
		by_traps();
#endif
	else
		return 2;
	return 0;
}
