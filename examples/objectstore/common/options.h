/* options.h - numbers on the command line. */
#ifndef OBJSTORE_OPTIONS_H
#define OBJSTORE_OPTIONS_H

/* The number in text, from min to max; anything else is reported on stderr and ends the program with status 2. */
long option_number(const char *name, const char *text, long min, long max);

#endif
