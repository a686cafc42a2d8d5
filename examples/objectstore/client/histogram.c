/* histogram.c - 64 buckets for each power of two of microseconds. */
#include "client.h"

#define SUB_BITS 6
#define SUBS (1u << SUB_BITS)

static unsigned bucket_of(uint64_t us)
{
	unsigned power, bucket;

	if (us < SUBS)
		return (unsigned)us;
	power = 63 - (unsigned)__builtin_clzll(us);
	bucket = (power - SUB_BITS + 1) * SUBS + (unsigned)(us >> (power - SUB_BITS)) - SUBS;
	return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

static uint64_t upper_end_of(unsigned bucket)
{
	unsigned power = bucket / SUBS, sub = bucket % SUBS;

	return power == 0 ? sub : ((uint64_t)(SUBS + sub + 1) << (power - 1)) - 1;
}

void histogram_add(struct histogram *histogram, uint64_t us)
{
	histogram->count[bucket_of(us)]++;
	histogram->total++;
	histogram->sum_us += us;
	if (us > histogram->max_us)
		histogram->max_us = us;
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
	for (unsigned n = 0; n < HISTOGRAM_BUCKETS; n++)
		into->count[n] += from->count[n];
	into->total += from->total;
	into->sum_us += from->sum_us;
	if (from->max_us > into->max_us)
		into->max_us = from->max_us;
}

uint64_t histogram_percentile(const struct histogram *histogram, double percent)
{
	double wanted = (double)histogram->total * percent / 100;
	uint64_t seen = 0;

	for (unsigned n = 0; n < HISTOGRAM_BUCKETS; n++) {
		seen += histogram->count[n];
		if (seen > 0 && (double)seen >= wanted)
			return upper_end_of(n) < histogram->max_us ? upper_end_of(n) : histogram->max_us;
	}
	return histogram->max_us;
}
