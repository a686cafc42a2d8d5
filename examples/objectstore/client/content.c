/* content.c - object contents that can be computed again from the object's name and its generation. */
#include <string.h>

#include "client.h"
#include "crc32c.h"

static uint64_t seed_of(const char *name, uint64_t generation)
{
	uint64_t seed = (uint64_t)crc32c(0, name, strlen(name)) << 32 | crc32c((uint32_t)generation, name, strlen(name));

	return (seed ^ generation * 0x9E3779B97F4A7C15u) | 1;
}

/* xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled". */
static uint64_t next(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545F4914F6CDD1Du;
}

void content_fill(unsigned char *data, uint32_t size, const char *name, uint64_t generation)
{
	uint64_t state = seed_of(name, generation);

	for (uint32_t at = 0; at < size; at += 8) {
		uint64_t word = next(&state);
		memcpy(data + at, &word, size - at < 8 ? size - at : 8);
	}
}

bool content_is(const unsigned char *data, uint32_t size, const char *name, uint64_t generation)
{
	uint64_t state = seed_of(name, generation);

	for (uint32_t at = 0; at < size; at += 8) {
		uint64_t word = next(&state);
		if (memcmp(data + at, &word, size - at < 8 ? size - at : 8) != 0)
			return false;
	}
	return true;
}
