/*
 * refill.c - makes this replica's copy of one placement group what the primary has.
 *
 * What was written here in an epoch before the refill began is suspect: it may never have been acknowledged. The
 * primary's copy replaces it, whichever version is newer. Writes that arrive meanwhile are of a later epoch, and
 * win over what is pulled if their version is higher.
 */
#include <errno.h>
#include <string.h>

#include "bytes.h"
#include "log.h"
#include "osd.h"

struct filling {
	struct osd *osd;
	struct conn *primary;
	unsigned pg;
	uint32_t epoch;
	uint32_t since; /* versions of earlier epochs are suspect */
	uint64_t tid;
};

static int ask(struct filling *f, uint16_t type, const char *name, struct msg *answer)
{
	struct msg question = {.type = type, .pg = (uint16_t)f->pg, .epoch = f->epoch, .tid = ++f->tid};
	int rc;

	msg_set_name(&question, name);
	rc = conn_send(f->primary, &question);
	if (rc == 0)
		rc = conn_receive(f->primary, answer);
	if (rc == 0 && (answer->type != MSG_RECOVER_REPLY || answer->tid != question.tid)) {
		msg_clear(answer);
		rc = -EBADMSG;
	}
	return rc;
}

static int remove_suspect(struct filling *f, const char *name)
{
	struct object_version have;

	if (!store_find(&f->osd->store, f->pg, name, &have) || version_epoch(have.version) >= f->since)
		return 0;
	return store_delete(&f->osd->store, f->pg, name, 0, f->since);
}

static int pull(struct filling *f, const char *name)
{
	struct msg answer;
	int rc = ask(f, MSG_RECOVER_PULL, name, &answer);

	if (rc != 0)
		return rc;
	if (answer.result == 0) {
		struct object_version is = {answer.version, answer.data_len, answer.data_crc};
		rc = store_put(&f->osd->store, f->pg, name, &is, answer.data, f->since);
	} else {
		rc = answer.result == -ENOENT ? remove_suspect(f, name) : answer.result;
	}
	msg_clear(&answer);
	return rc;
}

static bool have_it(struct filling *f, const char *name, const struct object_version *theirs)
{
	struct object_version ours;

	if (!store_find(&f->osd->store, f->pg, name, &ours))
		return false;
	if (ours.version == theirs->version)
		return ours.crc == theirs->crc && ours.size == theirs->size;
	return version_epoch(ours.version) >= f->since && ours.version > theirs->version;
}

/* Decodes the next entry of a page; returns its size, or 0 when it is invalid. */
static size_t next_listed(const unsigned char *at, size_t left, char *name, struct object_version *is)
{
	size_t len;

	if (left < LISTED_BYTES || left < LISTED_BYTES + (size_t)at[0])
		return 0;
	len = at[0];
	if (!msg_name_is_valid((const char *)at + LISTED_BYTES, len))
		return 0;
	is->version = get_u64(at + 1);
	is->size = get_u32(at + 9);
	is->crc = get_u32(at + 13);
	memcpy(name, at + LISTED_BYTES, len);
	name[len] = '\0';
	return LISTED_BYTES + len;
}

/* Removes our objects from *mine up to (not including) name; NULL: all that are left. */
static int drop_until(struct filling *f, const struct listed **mine, const struct listed *end, const char *name)
{
	int rc = 0;

	while (rc == 0 && *mine < end && (!name || strcmp((*mine)->name, name) < 0))
		rc = remove_suspect(f, (*mine)++->name);
	if (rc == 0 && *mine < end && name && strcmp((*mine)->name, name) == 0)
		(*mine)++;
	return rc;
}

static int take_page(struct filling *f, const struct msg *page, const struct listed **mine, const struct listed *end,
		     char *last)
{
	size_t at = 0;
	int rc = 0;

	while (rc == 0 && at < page->data_len) {
		struct object_version is;
		size_t taken = next_listed(page->data + at, page->data_len - at, last, &is);

		if (taken == 0)
			return -EBADMSG;
		at += taken;
		rc = drop_until(f, mine, end, last);
		if (rc == 0 && !have_it(f, last, &is))
			rc = pull(f, last);
	}
	return rc;
}

static int take_listing(struct filling *f, const struct listed *mine, const struct listed *end)
{
	char last[MAX_NAME_BYTES + 1] = "";
	bool more = true;
	int rc = 0;

	while (rc == 0 && more) {
		struct msg page;

		rc = ask(f, MSG_RECOVER_LIST, last, &page);
		if (rc != 0)
			return rc;
		more = !(page.flags & FLAG_LAST_PAGE);
		rc = page.result;
		if (rc == 0 && more && page.data_len == 0)
			rc = -EBADMSG; /* an empty page would repeat for ever */
		if (rc == 0)
			rc = take_page(f, &page, &mine, end, last);
		msg_clear(&page);
	}
	return rc == 0 ? drop_until(f, &mine, end, NULL) : rc;
}

int refill(struct osd *osd, struct conn *primary, unsigned pg, uint32_t epoch, uint32_t since)
{
	struct filling f = {.osd = osd, .primary = primary, .pg = pg, .epoch = epoch, .since = since};
	struct listed *mine;
	size_t count;
	int rc = store_list(&osd->store, pg, "", &mine, &count);

	if (rc != 0)
		return rc;
	rc = take_listing(&f, mine, mine + count);
	store_list_free(mine, count);
	return rc;
}
