/*
 * msg.h - the messages that client, gateway and OSDs exchange over TCP.
 *
 * One message, integers in network byte order:
 *
 *   offset bytes
 *        0     4  magic "OBJ1"
 *        4     2  type
 *        6     2  op
 *        8     8  tid: the requester's number for this exchange, repeated in the reply
 *       16     4  epoch of the sender's map
 *       20     2  placement group
 *       22     2  annotations wanted per put (0: the reference trace)
 *       24     8  version of the object (epoch << 32 | sequence)
 *       32     4  result: 0 or -errno
 *       36     2  flags
 *       38     2  length of the name
 *       40     4  length of the data
 *       44     4  CRC-32C of the data
 *       48    24  BlkKin trace info (blkin_trace_info_packed); zeros: not traced
 *       72     4  CRC-32C of the bytes before it and of the name
 *       76        name, then data
 */
#ifndef OBJSTORE_MSG_H
#define OBJSTORE_MSG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "trace.h"

#define MSG_HEADER_BYTES 76
#define MAX_NAME_BYTES 200
#define MAX_OBJECT_BYTES (4u << 20)
#define MAX_DATA_BYTES MAX_OBJECT_BYTES

enum msg_type {
	MSG_CLIENT_OP = 1,   /* client -> gateway */
	MSG_CLIENT_REPLY,    /* gateway -> client */
	MSG_HELLO,           /* gateway -> OSD: who are you? */
	MSG_HELLO_REPLY,     /* result: OSD id; version: boot nonce; data: store id, last map */
	MSG_MAP,             /* gateway -> OSD: data is an osdmap */
	MSG_PING,            /* gateway -> OSD */
	MSG_PONG,            /* OSD -> gateway */
	MSG_OSD_OP,          /* gateway -> primary ("mosdop") */
	MSG_OSD_OP_REPLY,    /* primary -> gateway ("mosdopreply"), FLAG_ACK or FLAG_COMMIT */
	MSG_SUB_OP,          /* primary -> replica ("mosdsubop") */
	MSG_SUB_OP_REPLY,    /* replica -> primary ("mosdsubopreply") */
	MSG_RECOVER_LIST,    /* replica -> primary: list the names after `name` in this placement group */
	MSG_RECOVER_PULL,    /* replica -> primary: send this object */
	MSG_RECOVER_REPLY,   /* primary -> replica */
	MSG_RECOVERED,       /* replica -> gateway: data lists placement groups that are complete again */
	MSG_TYPES,
};

enum op_code {
	OP_NONE,
	OP_PUT,
	OP_GET,
	OP_DELETE,
	OP_STATUS, /* client -> gateway, which answers with text; flags say what to wait for first */
	OP_CODES,
};

#define FLAG_ACK 1u           /* accepted and ordered, not durable yet */
#define FLAG_COMMIT 2u        /* durable on every replica that is up: the answer */
#define FLAG_LAST_PAGE 4u     /* RECOVER_LIST: nothing follows */
#define FLAG_ANY_REPLICA 8u   /* read this OSD's copy although another OSD is the primary */
#define FLAG_WAIT_CLEAN 16u   /* OP_STATUS: answer once every replica is complete */
#define FLAG_WAIT_DEGRADED 32u /* OP_STATUS: answer once some replica is incomplete */

struct msg {
	uint16_t type;
	uint16_t op;
	uint64_t tid;
	uint32_t epoch;
	uint16_t pg;
	uint16_t annotations;
	uint64_t version;
	int32_t result;
	uint16_t flags;
	uint16_t name_len;
	uint32_t data_len;
	uint32_t data_crc;
	struct blkin_trace_info trace;
	char name[MAX_NAME_BYTES + 1]; /* ends in NUL */
	unsigned char *data;           /* malloc'ed by msg_receive; NULL when data_len is 0 */
};

/* Object names: 1 to MAX_NAME_BYTES of A-Z a-z 0-9 . _ - (they are file names on the OSDs). */
bool msg_name_is_valid(const char *name, size_t len);
void msg_set_name(struct msg *msg, const char *name);
/* Borrows data: the caller keeps it alive until the message is sent. Computes the checksum. */
void msg_set_data(struct msg *msg, const void *data, uint32_t len);
/* Frees the data of a received message. */
void msg_clear(struct msg *msg);

/* Sends the whole message; 0 or -errno. One thread at a time per descriptor. */
int msg_send(int fd, const struct msg *msg);
/* Receives one message; 0, or -errno: -EPIPE at a clean end, -EBADMSG when the bytes are not a valid message. */
int msg_receive(int fd, struct msg *msg);

#endif
