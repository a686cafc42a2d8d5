/* net.c - every connection: TCP_NODELAY, and a bounded wait for a peer that stopped reading or vanished. */
#include "net.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "atomic_file.h"
#include "log.h"

#define SEND_TIMEOUT_S 5
#define CONNECT_TIMEOUT_S 5
#define KEEP_IDLE_S 5

static void set_options(int fd)
{
	struct timeval timeout = {.tv_sec = SEND_TIMEOUT_S};
	int on = 1, keep_idle_s = KEEP_IDLE_S, keep_interval_s = 1;
	unsigned user_timeout_ms = SEND_TIMEOUT_S * 1000;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
	/* Find out that the peer's machine is gone: the user timeout while sent data wait for its ACK, keepalives while idle. */
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &keep_idle_s, sizeof keep_idle_s);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &keep_interval_s, sizeof keep_interval_s);
}

static int resolve(const char *host, const char *port, int flags, struct addrinfo **found)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags};

	return getaddrinfo(host, port, &hints, found) == 0 ? 0 : -EADDRNOTAVAIL;
}

static int bound_port(int fd)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} address;
	socklen_t len = sizeof address;

	if (getsockname(fd, &address.any, &len) != 0)
		return -errno;
	return ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
}

int net_listen(const char *host, int *port)
{
	struct addrinfo *found;
	char text[16];
	int fd, on = 1, rc;

	snprintf(text, sizeof text, "%d", *port);
	rc = resolve(host, text, AI_PASSIVE, &found);
	if (rc != 0)
		return rc;
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		freeaddrinfo(found);
		return -errno;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	rc = bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 128) != 0 ? -errno : 0;
	freeaddrinfo(found);
	if (rc == 0)
		rc = *port = bound_port(fd);
	if (rc < 0) {
		close(fd);
		return rc;
	}
	return fd;
}

/* Errors of accept(2) that concern the new connection, not the listener. */
static bool is_of_one_connection(int error)
{
	switch (error) {
	case EINTR:
	case ECONNABORTED:
	case EPERM: /* refused by a firewall */
	case ENETDOWN:
	case EPROTO:
	case ENOPROTOOPT:
	case EHOSTDOWN:
	case ENONET:
	case EHOSTUNREACH:
	case EOPNOTSUPP:
	case ENETUNREACH:
		return true;
	default:
		return false;
	}
}

int net_accept(int listener)
{
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0) {
			set_options(fd);
			return fd;
		}
		if (errno == EINVAL)
			return -errno;
		if (!is_of_one_connection(errno))
			die("failed to accept a connection: %s", strerror(errno));
	}
}

int net_connect(const char *address)
{
	struct timeval timeout = {.tv_sec = CONNECT_TIMEOUT_S};
	char host[ADDRESS_BYTES];
	const char *colon = strrchr(address, ':');
	struct addrinfo *found;
	int fd, rc;

	if (!colon || (size_t)(colon - address) >= sizeof host)
		return -EINVAL;
	memcpy(host, address, (size_t)(colon - address));
	host[colon - address] = '\0';
	rc = resolve(host, colon + 1, 0, &found);
	if (rc != 0)
		return rc;
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	rc = fd < 0 ? -errno : 0;
	if (rc == 0) {
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
		if (connect(fd, found->ai_addr, found->ai_addrlen) != 0)
			rc = -errno;
	}
	freeaddrinfo(found);
	if (rc != 0) {
		if (fd >= 0)
			close(fd);
		return rc;
	}
	set_options(fd);
	return fd;
}

int ready_write(const char *path, const char *host, int port)
{
	char line[ADDRESS_BYTES];
	int len;

	if (!path)
		return 0;
	len = snprintf(line, sizeof line, "%s:%d\n", host, port);
	if (len < 0 || (size_t)len >= sizeof line)
		return -ENAMETOOLONG;
	return atomic_file_write(path, line, (size_t)len);
}

int ready_read(const char *path, char address[ADDRESS_BYTES])
{
	ssize_t n = atomic_file_read(path, address, ADDRESS_BYTES - 1);

	if (n < 0)
		return (int)n;
	address[n] = '\0';
	address[strcspn(address, "\n")] = '\0';
	return address[0] ? 0 : -EINVAL;
}
