/* serve_recovery.c - the primary lists its objects for a replica, and sends them. Untraced. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "osd.h"

#define PAGE_BYTES (1u << 20)

static void send_answer(struct op *op, struct msg *answer)
{
	answer->type = MSG_RECOVER_REPLY;
	answer->tid = op->msg.tid;
	answer->pg = op->msg.pg;
	answer->epoch = op->pg->epoch;
	conn_send(op->conn, answer);
}

static size_t add_to_page(unsigned char *page, size_t used, const struct listed *listed)
{
	size_t len = strlen(listed->name);

	if (used + LISTED_BYTES + len > PAGE_BYTES)
		return 0;
	page[used] = (unsigned char)len;
	put_u64(page + used + 1, listed->is.version);
	put_u32(page + used + 9, listed->is.size);
	put_u32(page + used + 13, listed->is.crc);
	memcpy(page + used + LISTED_BYTES, listed->name, len);
	return used + LISTED_BYTES + len;
}

static void fill_page(struct msg *answer, unsigned char *page, const struct listed *list, size_t count)
{
	size_t used = 0, n = 0;

	for (; n < count; n++) {
		size_t with = add_to_page(page, used, &list[n]);
		if (with == 0)
			break;
		used = with;
	}
	if (n == count)
		answer->flags = FLAG_LAST_PAGE;
	msg_set_data(answer, page, (uint32_t)used);
}

/* Called when no write of the group is in flight: later writes are sent to the replica as well. */
void serve_listing(struct op *op)
{
	struct osd *osd = op->osd;
	struct msg answer = {0};
	unsigned char *page = malloc(PAGE_BYTES);
	struct listed *list = NULL;
	size_t count = 0;

	answer.result = op->pg->entry.primary == osd->options.id ? 0 : -ESTALE;
	if (answer.result == 0)
		answer.result = page ? store_list(&osd->store, op->pg->id, op->msg.name, &list, &count) : -ENOMEM;
	if (answer.result == 0)
		fill_page(&answer, page, list, count);
	send_answer(op, &answer);
	store_list_free(list, count);
	free(page);
}

void serve_pull(struct op *op)
{
	struct object_version is = {0};
	struct msg answer = {0};

	answer.result = store_read(&op->osd->store, op->pg->id, op->msg.name, &answer.data, &is);
	answer.version = is.version;
	answer.data_len = answer.result == 0 ? is.size : 0;
	answer.data_crc = is.crc;
	send_answer(op, &answer);
	msg_clear(&answer);
}
