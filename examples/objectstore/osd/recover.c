/* recover.c - one thread refills the placement groups that the map calls RECOVERING, from their primaries. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include "bytes.h"
#include "log.h"
#include "osd.h"

#define RETRY_MS 100
#define ANSWER_TIMEOUT_S 10

/* The next group to refill, or -1. Called with map_lock held. */
static int next_group(const struct osd *osd)
{
	for (int n = 0; n < osd->map.pg_count; n++) {
		const struct pg_entry *entry = &osd->map.pg[n];
		if (entry->replica == osd->options.id && entry->state == REPLICA_RECOVERING &&
		    osd->map.osd[entry->primary].up && osd->pgs[n].recovered != entry->state_since)
			return n;
	}
	return -1;
}

static struct conn *connect_to(struct osd *osd, const char *address)
{
	struct timeval timeout = {.tv_sec = ANSWER_TIMEOUT_S};
	int fd = net_connect(address);
	struct conn *conn = fd < 0 ? NULL : conn_new(fd);

	if (!conn)
		return NULL;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
	pthread_mutex_lock(&osd->map_lock);
	osd->refill = conn_hold(conn);
	if (osd->stopping)
		conn_shutdown(conn);
	pthread_mutex_unlock(&osd->map_lock);
	return conn;
}

static void disconnect(struct osd *osd, struct conn *conn)
{
	pthread_mutex_lock(&osd->map_lock);
	osd->refill = NULL;
	pthread_mutex_unlock(&osd->map_lock);
	conn_release(conn);
	conn_release(conn);
}

static int refill_group(struct osd *osd, unsigned pg, uint32_t epoch, uint32_t since, const char *address)
{
	struct conn *conn = connect_to(osd, address);
	int rc;

	if (!conn)
		return -ENOTCONN;
	rc = refill(osd, conn, pg, epoch, since);
	disconnect(osd, conn);
	return rc;
}

/*
 * Makes the refill durable and empties the journal, because a replay must not bring back what the refill has replaced.
 * Then tells the gateway that it may count on this copy.
 */
static void report(struct osd *osd, const struct pg_entry *done, const unsigned *pgs, unsigned count)
{
	unsigned char data[MAX_PGS * 6];
	struct msg msg = {.type = MSG_RECOVERED};
	struct conn *gateway;
	int rc;

	journal_checkpoint(&osd->journal);
	rc = store_sync(&osd->store);
	if (rc != 0)
		die("failed to sync the store: %s", strerror(-rc));
	for (unsigned n = 0; n < count; n++) {
		put_u16(data + n * 6, (uint16_t)pgs[n]);
		put_u32(data + n * 6 + 2, done[n].state_since);
	}
	msg_set_data(&msg, data, count * 6);
	pthread_mutex_lock(&osd->map_lock);
	gateway = osd->gateway ? conn_hold(osd->gateway) : NULL;
	pthread_mutex_unlock(&osd->map_lock);
	log_line("refilled %u placement groups", count);
	if (gateway)
		conn_send(gateway, &msg);
	conn_release(gateway);
}

static void wait_to_retry(struct osd *osd)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += RETRY_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	if (!osd->stopping)
		pthread_cond_timedwait(&osd->map_changed, &osd->map_lock, &until);
}

/* Refills all groups that need it; map_lock is held on entry and return. */
static void refill_all(struct osd *osd)
{
	struct pg_entry done[MAX_PGS];
	unsigned pgs[MAX_PGS], count = 0;
	int pg, rc = 0;

	while (rc == 0 && !osd->stopping && (pg = next_group(osd)) >= 0) {
		struct pg_entry entry = osd->map.pg[pg];
		uint32_t epoch = osd->map.epoch;
		char address[ADDRESS_BYTES];

		memcpy(address, osd->map.osd[entry.primary].address, sizeof address);
		pthread_mutex_unlock(&osd->map_lock);
		rc = refill_group(osd, (unsigned)pg, epoch, entry.state_since, address);
		pthread_mutex_lock(&osd->map_lock);
		if (rc != 0)
			break;
		osd->pgs[pg].recovered = entry.state_since; /* not twice in this round */
		done[count] = entry;
		pgs[count++] = (unsigned)pg;
	}
	pthread_mutex_unlock(&osd->map_lock);
	if (count > 0)
		report(osd, done, pgs, count);
	pthread_mutex_lock(&osd->map_lock);
	if (rc != 0 && !osd->stopping) {
		log_line("failed to refill %s from its primary (%s): trying again", osd->pgs[pg].name, strerror(-rc));
		wait_to_retry(osd);
	}
}

void *recovery_thread(void *arg)
{
	struct osd *osd = arg;

	pthread_mutex_lock(&osd->map_lock);
	while (!osd->stopping) {
		if (next_group(osd) >= 0)
			refill_all(osd);
		else
			pthread_cond_wait(&osd->map_changed, &osd->map_lock);
	}
	pthread_mutex_unlock(&osd->map_lock);
	return NULL;
}
