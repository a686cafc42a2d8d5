/*
 * "sampling threads T K": begins K roots in T threads, and prints how many were sampled. "sampling spans T K": the same with
 * blkin_span_root(). "sampling forks K": one root in each of K forked children. Children of unsampled roots stay
 * unsampled.
 */
#include <pthread.h>
#include <sys/wait.h>

#include "expect.h"

static const struct blkin_endpoint here = { "10.0.0.1", 1, "sampling" };
static long sampled, roots_each;

static int one_root(void)
{
	struct blkin_trace root, child;

	CHECK(blkin_init_new_trace(&root, "root", &here) == 0);
	CHECK(blkin_init_child(&child, &root, NULL, "child") == 0);
	CHECK((root.info.trace_id == 0) == (child.info.trace_id == 0));
	BLKIN_TIMESTAMP(&child, NULL, "sampled");
	return root.info.trace_id != 0;
}

static int one_root_at_once(void)
{
	struct blkin_span root, child;

	CHECK(blkin_span_root(&root, "root", &here) == 0);
	CHECK(root.trace.info.trace_id == root.trace.info.span_id && root.trace.info.parent_span_id == 0);
	CHECK(blkin_span_child(&child, &root.trace.info, "child", &here) == 0);
	CHECK((root.trace.info.trace_id == 0) == (child.trace.info.trace_id == 0));
	BLKIN_EVENT(&child, "sampled");
	return root.trace.info.trace_id != 0;
}

static int (*begin)(void) = one_root;

static void *thread(void *unused)
{
	long i, mine = 0;

	for (i = 0; i < roots_each; i++)
		mine += begin();
	__atomic_add_fetch(&sampled, mine, __ATOMIC_RELAXED);
	return unused;
}

static void threads(long count, long roots)
{
	pthread_t ids[64];
	long i;

	CHECK(count <= 64);
	roots_each = roots / count;
	for (i = 0; i < count; i++)
		CHECK(pthread_create(&ids[i], NULL, thread, NULL) == 0);
	for (i = 0; i < count; i++)
		CHECK(pthread_join(ids[i], NULL) == 0);
}

static void forks(long count)
{
	int status;
	long i;

	for (i = 0; i < count; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0)
			_exit(one_root());
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
		sampled += WEXITSTATUS(status);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc > 2);
	if (!strcmp(argv[1], "spans"))
		begin = one_root_at_once;
	if (strcmp(argv[1], "forks"))
		threads(atol(argv[2]), atol(argv[3]));
	else
		forks(atol(argv[2]));
	expect_count(sampled);
	printf("%ld\n", sampled);
	return 0;
}
