#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zipkin_c.h>

/* A request goes from one process to another: its ids travel in the message, and both sides write into one span. */
struct message {
	struct blkin_trace_info_packed ids;
	char object[16];
};

static int call(int peer, const struct blkin_trace *request)
{
	struct message message = { .object = "alpha" };
	struct blkin_trace read_op;
	char answer;

	blkin_init_child(&read_op, request, NULL, "read");     /* the caller begins the span of the call */
	blkin_pack_trace_info(&read_op.info, &message.ids);    /* 24 bytes, the same on every machine */
	BLKIN_TIMESTAMP(&read_op, NULL, CLIENT_SEND);
	if (write(peer, &message, sizeof message) != sizeof message || read(peer, &answer, 1) != 1)
		return -1;
	BLKIN_TIMESTAMP(&read_op, NULL, CLIENT_RECV);
	return 0;
}

static int serve(int peer)
{
	struct blkin_endpoint osd;
	struct message message;
	struct blkin_trace_info ids;
	struct blkin_trace read_op, disk;

	blkin_init_endpoint(&osd, "127.0.0.1", 6800, "osd.0");
	if (read(peer, &message, sizeof message) != sizeof message)
		return -1;
	blkin_unpack_trace_info(&message.ids, &ids);           /* the server writes into the same span */
	blkin_set_trace_properties(&read_op, &ids, "read", &osd);
	BLKIN_TIMESTAMP(&read_op, NULL, SERVER_RECV);
	blkin_init_child(&disk, &read_op, NULL, "disk");       /* its own work is a child span */
	BLKIN_TIMESTAMP(&disk, NULL, "start");
	usleep(1000);
	BLKIN_TIMESTAMP(&disk, NULL, "end");
	BLKIN_TIMESTAMP(&read_op, NULL, SERVER_SEND);
	return write(peer, "", 1) == 1 ? 0 : -1;
}

int main(void)
{
	struct blkin_endpoint gateway;
	struct blkin_trace get;
	int ends[2], failed;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		return 1;
	switch (fork()) {
	case -1:
		return 1;
	case 0:
		close(ends[0]);
		return serve(ends[1]) != 0;
	}
	close(ends[1]);
	blkin_init_endpoint(&gateway, "127.0.0.1", 8080, "gateway");
	blkin_init_new_trace(&get, "get", &gateway);
	BLKIN_TIMESTAMP(&get, NULL, SERVER_RECV);
	failed = call(ends[0], &get);
	BLKIN_TIMESTAMP(&get, NULL, SERVER_SEND);
	close(ends[0]);
	wait(NULL);
	printf("blkin trace %016llx\n", (unsigned long long)get.info.trace_id);
	return failed != 0;
}
