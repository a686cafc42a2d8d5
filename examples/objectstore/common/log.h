/* log.h - one line on stderr per thing worth saying. */
#ifndef OBJSTORE_LOG_H
#define OBJSTORE_LOG_H

/* Who is speaking: "osd.0", "gateway". Call before threads start. */
void log_name(const char *name);

void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Says why and ends the process with status 1: for states in which going on would harm data. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
