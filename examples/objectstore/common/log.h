/* log.h - log lines on stderr. */
#ifndef OBJSTORE_LOG_H
#define OBJSTORE_LOG_H

/* The name at the start of each line: "osd.0", "gateway". Call before threads start. */
void log_name(const char *name);

void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Logs why and ends the process with status 1: for states in which going on would harm data. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
