/* options.c - an invalid number ends the program before it does anything. */
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

long option_number(const char *name, const char *text, long min, long max)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || value < min || value > max) {
		fprintf(stderr, "failed to read --%s %s: give a number from %ld to %ld\n", name, text, min, max);
		exit(2);
	}
	return value;
}
