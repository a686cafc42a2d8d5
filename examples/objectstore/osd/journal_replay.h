/* journal_replay.h - replays the entries that an earlier run left in the journal. */
#ifndef OBJSTORE_JOURNAL_REPLAY_H
#define OBJSTORE_JOURNAL_REPLAY_H

#include "journal.h"

void segment_path(const struct journal *journal, uint64_t id, char *out, size_t max);
/*
 * Replays every segment in order, syncs, removes them; sets next_seq and replayed. 0 or -errno; -EUCLEAN when an
 * entry is missing in the middle, which no crash can cause.
 */
int journal_replay(struct journal *journal);

#endif
