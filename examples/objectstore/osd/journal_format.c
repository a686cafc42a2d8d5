/* journal_format.c - checks the checksum before it uses anything in an entry. */
#include "journal_format.h"

#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "msg.h"
#include "osdmap.h"

#define ENTRY_MAGIC 0x4a524e31u /* "JRN1" */

size_t entry_bytes(const struct journal_entry *entry)
{
	size_t bytes = ENTRY_HEADER_BYTES + (size_t)entry->name_len + entry->data_len;

	return (bytes + 7) & ~(size_t)7;
}

static uint32_t header_crc(const unsigned char *header, const void *name, size_t name_len)
{
	return crc32c(crc32c(0, header + 8, ENTRY_HEADER_BYTES - 8), name, name_len);
}

void entry_encode(const struct journal_entry *entry, uint64_t seq, unsigned char h[ENTRY_HEADER_BYTES])
{
	put_u32(h, ENTRY_MAGIC);
	put_u64(h + 8, seq);
	put_u64(h + 16, entry->version);
	put_u16(h + 24, entry->op);
	put_u16(h + 26, entry->pg);
	put_u16(h + 28, entry->name_len);
	put_u16(h + 30, 0);
	put_u32(h + 32, entry->data_len);
	put_u32(h + 36, entry->data_crc);
	put_u32(h + 4, header_crc(h, entry->name, entry->name_len));
}

size_t entry_decode(const unsigned char *bytes, size_t len, struct journal_entry *entry, uint64_t *seq, char *name)
{
	memset(entry, 0, sizeof *entry);
	if (len < ENTRY_HEADER_BYTES || get_u32(bytes) != ENTRY_MAGIC)
		return 0;
	*seq = get_u64(bytes + 8);
	entry->version = get_u64(bytes + 16);
	entry->op = get_u16(bytes + 24);
	entry->pg = get_u16(bytes + 26);
	entry->name_len = get_u16(bytes + 28);
	entry->data_len = get_u32(bytes + 32);
	entry->data_crc = get_u32(bytes + 36);
	if (entry->name_len > MAX_NAME_BYTES || entry->data_len > MAX_OBJECT_BYTES || entry->pg >= MAX_PGS ||
	    entry_bytes(entry) > len)
		return 0;
	if (get_u32(bytes + 4) != header_crc(bytes, bytes + ENTRY_HEADER_BYTES, entry->name_len))
		return 0;
	memcpy(name, bytes + ENTRY_HEADER_BYTES, entry->name_len);
	name[entry->name_len] = '\0';
	entry->name = name;
	entry->data = bytes + ENTRY_HEADER_BYTES + entry->name_len;
	if (!msg_name_is_valid(name, entry->name_len) || crc32c(0, entry->data, entry->data_len) != entry->data_crc)
		return 0;
	return entry_bytes(entry);
}
