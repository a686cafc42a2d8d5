/* crc32c.h - the checksum of messages, journal entries and object files (CRC-32C, Castagnoli). */
#ifndef OBJSTORE_CRC32C_H
#define OBJSTORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues crc over len bytes; start with 0. crc32c(0, "123456789", 9) == 0xE3069283. */
uint32_t crc32c(uint32_t crc, const void *data, size_t len);

#endif
