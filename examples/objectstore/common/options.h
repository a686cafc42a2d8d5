/* options.h - numbers on the command line. */
#ifndef OBJSTORE_OPTIONS_H
#define OBJSTORE_OPTIONS_H

/* The number in text, which must lie between min and max; otherwise says so on stderr and exits with 2. */
long option_number(const char *name, const char *text, long min, long max);

#endif
