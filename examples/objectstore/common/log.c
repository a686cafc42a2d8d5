/* log.c - one write(2) per line, so that lines of several threads never mix. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024

static char speaker[32] = "objstore";

void log_name(const char *name)
{
	snprintf(speaker, sizeof speaker, "%s", name);
}

static void say(const char *format, va_list args)
{
	char line[LINE_BYTES];
	struct timespec now;
	struct tm utc;
	size_t used;
	int n;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &utc);
	used = strftime(line, sizeof line, "%FT%T", &utc);
	used += (size_t)snprintf(line + used, sizeof line - used, ".%06ldZ %s: ", now.tv_nsec / 1000, speaker);
	n = vsnprintf(line + used, sizeof line - used - 1, format, args);
	if (n < 0)
		n = 0;
	used += (size_t)n;
	if (used > sizeof line - 2)
		used = sizeof line - 2;
	line[used++] = '\n';
	if (write(STDERR_FILENO, line, used) < 0)
		return; /* there is no other place to report it */
}

void log_line(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say(format, args);
	va_end(args);
}

void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say(format, args);
	va_end(args);
	_exit(1); /* not exit(): other threads still run, and the journal covers an unclean end */
}
