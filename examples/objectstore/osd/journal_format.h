/* journal_format.h - encoding of a journal entry. */
#ifndef OBJSTORE_JOURNAL_FORMAT_H
#define OBJSTORE_JOURNAL_FORMAT_H

#include "journal.h"

#define ENTRY_HEADER_BYTES 40

/* Size of the entry in the file: header, name, data and padding. */
size_t entry_bytes(const struct journal_entry *entry);
void entry_encode(const struct journal_entry *entry, uint64_t seq, unsigned char header[ENTRY_HEADER_BYTES]);
/*
 * Decodes the entry at the start of len bytes; name (of MAX_NAME_BYTES + 1) receives the name, data points into
 * bytes. Returns the size of the entry, or 0 when there is no whole and correct entry.
 */
size_t entry_decode(const unsigned char *bytes, size_t len, struct journal_entry *entry, uint64_t *seq, char *name);

#endif
