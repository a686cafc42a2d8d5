/*
 * An idle program whose memory is measured: idle plain [COUNT]|traced|threads COUNT
 *
 * plain records nothing, traced records once, threads COUNT also has COUNT threads that have each recorded once; plain COUNT
 * has as many threads that record nothing. Prints "ready" and waits for its standard input to end.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zipkin_c.h>

static struct blkin_endpoint endpoint;
static pthread_barrier_t all_there;
static int tracing;

static void record_once(void)
{
	struct blkin_trace trace;

	blkin_init_new_trace(&trace, "Main", &endpoint);
	BLKIN_TIMESTAMP(&trace, &endpoint, "Enqueued op");
}

static void *thread(void *unused)
{
	if (tracing)
		record_once();
	pthread_barrier_wait(&all_there);
	pause();
	return unused;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[2]) : 0;
	pthread_attr_t small;

	if (argc < 2)
		return 2;
	tracing = strcmp(argv[1], "plain") != 0;
	blkin_init_endpoint(&endpoint, "10.0.0.1", 6800, "osd.0");
	if (tracing)
		record_once();
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 * 1024);
	pthread_barrier_init(&all_there, NULL, (unsigned)count + 1);
	for (int i = 0; i < count; i++) {
		pthread_t one;
		if (pthread_create(&one, &small, thread, NULL))
			return 1;
	}
	pthread_barrier_wait(&all_there);
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
