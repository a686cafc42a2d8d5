/* stop_signal.c - waits for the signals instead of handling them, so no code need be async-signal-safe. */
#include "stop_signal.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

static sigset_t stop_set(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	return set;
}

void stop_signal_block(void)
{
	sigset_t set = stop_set();

	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
}

void stop_signal_wait(void)
{
	sigset_t set = stop_set();
	int which;

	sigwait(&set, &which);
}
