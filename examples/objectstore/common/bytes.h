/* bytes.h - integers in network byte order, at any alignment. */
#ifndef OBJSTORE_BYTES_H
#define OBJSTORE_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void put_u16(void *at, uint16_t v)
{
	v = htobe16(v);
	memcpy(at, &v, sizeof v);
}

static inline void put_u32(void *at, uint32_t v)
{
	v = htobe32(v);
	memcpy(at, &v, sizeof v);
}

static inline void put_u64(void *at, uint64_t v)
{
	v = htobe64(v);
	memcpy(at, &v, sizeof v);
}

static inline uint16_t get_u16(const void *at)
{
	uint16_t v;

	memcpy(&v, at, sizeof v);
	return be16toh(v);
}

static inline uint32_t get_u32(const void *at)
{
	uint32_t v;

	memcpy(&v, at, sizeof v);
	return be32toh(v);
}

static inline uint64_t get_u64(const void *at)
{
	uint64_t v;

	memcpy(&v, at, sizeof v);
	return be64toh(v);
}

#endif
