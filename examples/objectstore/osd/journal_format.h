/* journal_format.h - a journal entry as bytes. */
#ifndef OBJSTORE_JOURNAL_FORMAT_H
#define OBJSTORE_JOURNAL_FORMAT_H

#include "journal.h"

#define ENTRY_HEADER_BYTES 40

/* Header, name, data and padding: what the entry takes in the file. */
size_t entry_bytes(const struct journal_entry *entry);
void entry_encode(const struct journal_entry *entry, uint64_t seq, unsigned char header[ENTRY_HEADER_BYTES]);
/*
 * Decodes the entry at the start of len bytes; name (of MAX_NAME_BYTES + 1) receives the name, data points into
 * bytes. The number of bytes it takes, or 0 when there is no whole and correct entry.
 */
size_t entry_decode(const unsigned char *bytes, size_t len, struct journal_entry *entry, uint64_t *seq, char *name);

#endif
