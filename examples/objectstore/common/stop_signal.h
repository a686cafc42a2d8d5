/* stop_signal.h - SIGTERM and SIGINT are received in one place: where main() waits for them. */
#ifndef OBJSTORE_STOP_SIGNAL_H
#define OBJSTORE_STOP_SIGNAL_H

/* Before any thread starts; also ignores SIGPIPE. */
void stop_signal_block(void);
void stop_signal_wait(void);

#endif
