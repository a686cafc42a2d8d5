/* net.h - TCP listeners and connections, and the ready file, from which others learn a daemon's port. */
#ifndef OBJSTORE_NET_H
#define OBJSTORE_NET_H

#include <stddef.h>

#define ADDRESS_BYTES 64 /* "127.0.0.1:65535" and more */

/* Listens on host:port (port 0: any free one); *port is then the actual port. A descriptor or -errno. */
int net_listen(const char *host, int *port);
/* The next connection, with the options every connection has; -EINVAL once the listener is shut down. Ends the process when
 * accept(2) fails for good: a daemon that accepts no connections is of no use. */
int net_accept(int listener);
/* Connects to "host:port"; a descriptor or -errno. */
int net_connect(const char *address);

/* Writes "host:port\n" to path, to show that the daemon serves from now on. 0 or -errno. NULL path: does nothing. */
int ready_write(const char *path, const char *host, int port);
/* Reads what ready_write() wrote; 0 or -errno. */
int ready_read(const char *path, char address[ADDRESS_BYTES]);

#endif
