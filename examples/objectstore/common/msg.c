/* msg.c - encodes and decodes messages; checks each length against its limit before it allocates memory. */
#include "msg.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "bytes.h"
#include "crc32c.h"

#define MAGIC 0x4f424a31u /* "OBJ1" */

enum {
	AT_MAGIC = 0,
	AT_TYPE = 4,
	AT_OP = 6,
	AT_TID = 8,
	AT_EPOCH = 16,
	AT_PG = 20,
	AT_ANNOTATIONS = 22,
	AT_VERSION = 24,
	AT_RESULT = 32,
	AT_FLAGS = 36,
	AT_NAME_LEN = 38,
	AT_DATA_LEN = 40,
	AT_DATA_CRC = 44,
	AT_TRACE = 48,
	AT_HEADER_CRC = 72,
};

_Static_assert(sizeof(struct blkin_trace_info_packed) == 24, "the trace info takes 24 bytes of a message");
_Static_assert(AT_TRACE + 24 == AT_HEADER_CRC && AT_HEADER_CRC + 4 == MSG_HEADER_BYTES, "the header has no gaps");

bool msg_name_is_valid(const char *name, size_t len)
{
	if (len == 0 || len > MAX_NAME_BYTES)
		return false;
	for (size_t i = 0; i < len; i++) {
		char c = name[i];
		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
		      c == '_' || c == '-'))
			return false;
	}
	return true;
}

void msg_set_name(struct msg *msg, const char *name)
{
	size_t len = strnlen(name, MAX_NAME_BYTES);

	memcpy(msg->name, name, len);
	msg->name[len] = '\0';
	msg->name_len = (uint16_t)len;
}

void msg_set_data(struct msg *msg, const void *data, uint32_t len)
{
	msg->data = (unsigned char *)(uintptr_t)data; /* sending does not write to it */
	msg->data_len = len;
	msg->data_crc = crc32c(0, data, len);
}

void msg_clear(struct msg *msg)
{
	free(msg->data);
	msg->data = NULL;
	msg->data_len = 0;
}

static void encode_header(const struct msg *msg, unsigned char *h)
{
	struct blkin_trace_info_packed packed;

	put_u32(h + AT_MAGIC, MAGIC);
	put_u16(h + AT_TYPE, msg->type);
	put_u16(h + AT_OP, msg->op);
	put_u64(h + AT_TID, msg->tid);
	put_u32(h + AT_EPOCH, msg->epoch);
	put_u16(h + AT_PG, msg->pg);
	put_u16(h + AT_ANNOTATIONS, msg->annotations);
	put_u64(h + AT_VERSION, msg->version);
	put_u32(h + AT_RESULT, (uint32_t)msg->result);
	put_u16(h + AT_FLAGS, msg->flags);
	put_u16(h + AT_NAME_LEN, msg->name_len);
	put_u32(h + AT_DATA_LEN, msg->data_len);
	put_u32(h + AT_DATA_CRC, msg->data_crc);
	blkin_pack_trace_info(&msg->trace, &packed);
	memcpy(h + AT_TRACE, &packed, sizeof packed);
	put_u32(h + AT_HEADER_CRC, crc32c(crc32c(0, h, AT_HEADER_CRC), msg->name, msg->name_len));
}

static int decode_header(const unsigned char *h, struct msg *msg)
{
	struct blkin_trace_info_packed packed;

	memset(msg, 0, offsetof(struct msg, name));
	msg->data = NULL;
	msg->type = get_u16(h + AT_TYPE);
	msg->op = get_u16(h + AT_OP);
	msg->tid = get_u64(h + AT_TID);
	msg->epoch = get_u32(h + AT_EPOCH);
	msg->pg = get_u16(h + AT_PG);
	msg->annotations = get_u16(h + AT_ANNOTATIONS);
	msg->version = get_u64(h + AT_VERSION);
	msg->result = (int32_t)get_u32(h + AT_RESULT);
	msg->flags = get_u16(h + AT_FLAGS);
	msg->name_len = get_u16(h + AT_NAME_LEN);
	msg->data_len = get_u32(h + AT_DATA_LEN);
	msg->data_crc = get_u32(h + AT_DATA_CRC);
	memcpy(&packed, h + AT_TRACE, sizeof packed);
	blkin_unpack_trace_info(&packed, &msg->trace);
	if (get_u32(h + AT_MAGIC) != MAGIC || msg->type == 0 || msg->type >= MSG_TYPES || msg->op >= OP_CODES)
		return -EBADMSG;
	if (msg->name_len > MAX_NAME_BYTES || msg->data_len > MAX_DATA_BYTES)
		return -EBADMSG;
	return 0;
}

static size_t advance(struct iovec *iov, size_t count, size_t done)
{
	size_t i = 0;

	for (; i < count && done >= iov[i].iov_len; i++) {
		done -= iov[i].iov_len;
		iov[i].iov_len = 0;
	}
	if (i < count) {
		iov[i].iov_base = (char *)iov[i].iov_base + done;
		iov[i].iov_len -= done;
	}
	return i;
}

int msg_send(int fd, const struct msg *msg)
{
	unsigned char header[MSG_HEADER_BYTES];
	struct iovec iov[3] = {
		{header, sizeof header},
		{(char *)(uintptr_t)msg->name, msg->name_len},
		{msg->data, msg->data_len},
	};
	size_t first = 0;

	encode_header(msg, header);
	while (first < 3) {
		struct msghdr hdr = {.msg_iov = iov + first, .msg_iovlen = 3 - first};
		ssize_t n = sendmsg(fd, &hdr, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		first += advance(iov + first, 3 - first, (size_t)n);
	}
	return 0;
}

static int receive_all(int fd, void *at, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = recv(fd, (char *)at + done, len - done, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return done == 0 ? -EPIPE : -ECONNRESET;
		done += (size_t)n;
	}
	return 0;
}

static int receive_data(int fd, struct msg *msg)
{
	int rc;

	if (msg->data_len == 0)
		return 0;
	msg->data = malloc(msg->data_len);
	if (!msg->data)
		return -ENOMEM;
	rc = receive_all(fd, msg->data, msg->data_len);
	if (rc == 0 && crc32c(0, msg->data, msg->data_len) != msg->data_crc)
		rc = -EBADMSG;
	if (rc != 0) {
		msg_clear(msg);
		return rc == -EPIPE ? -ECONNRESET : rc;
	}
	return 0;
}

int msg_receive(int fd, struct msg *msg)
{
	unsigned char header[MSG_HEADER_BYTES];
	int rc = receive_all(fd, header, sizeof header);

	if (rc != 0)
		return rc;
	rc = decode_header(header, msg);
	if (rc != 0)
		return rc;
	rc = receive_all(fd, msg->name, msg->name_len);
	if (rc != 0)
		return -ECONNRESET;
	msg->name[msg->name_len] = '\0';
	if (get_u32(header + AT_HEADER_CRC) != crc32c(crc32c(0, header, AT_HEADER_CRC), msg->name, msg->name_len))
		return -EBADMSG;
	if (msg->name_len > 0 && !msg_name_is_valid(msg->name, msg->name_len))
		return -EBADMSG;
	return receive_data(fd, msg);
}
