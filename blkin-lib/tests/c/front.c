/* A program in the style of the original branch: its header, field names, non-const arguments, int ports. */
#include <blkin-front.h>

#include "expect.h"

struct message {
	char text[20];
	struct blkin_trace_info trace_info;
};

static struct blkin_endpoint endp;

static void ask(struct message *msg)
{
	char *name = strdup("process a"), *event = strdup("start");
	struct blkin_trace trace;
	struct blkin_annotation ant;

	blkin_init_new_trace(&trace, name, &endp);
	blkin_init_timestamp_annotation(&ant, event, &endp);
	blkin_record(&trace, &ant);
	blkin_get_trace_info(&trace, &msg->trace_info);
	CHECK(trace.trace_endpoint == &endp && ant.annotation_endpoint == &endp && !strcmp(ant.val, "start"));
	expect(&trace.info, "process a", "10.0.0.1", 50000, "service a", "start", "!");
	free(event);
	free(name);
}

static void answer(struct message *msg)
{
	struct blkin_trace trace = { .name = "process b", .trace_endpoint = &endp };
	struct blkin_annotation by_hand;

	blkin_init_child_info(&trace, &msg->trace_info, &endp, "process b");
	BLKIN_TIMESTAMP(&trace, &endp, "received")
	BLKIN_KEYVAL(&trace, &endp, "text", msg->text)
	by_hand.type = ANNOT_TIMESTAMP;
	by_hand.val = msg->text;
	by_hand.annotation_endpoint = NULL;
	CHECK((*blkin_record)(&trace, &by_hand) == 0);
	expect(&trace.info, "process b", "10.0.0.1", 50000, "service a", "received", "!");
	expect(&trace.info, "process b", "10.0.0.1", 50000, "service a", "text", "=message");
	expect(&trace.info, "process b", "10.0.0.1", 50000, "service a", "message", "!");
}

int main(void)
{
	struct message msg = { "message", { 0, 0, 0 } };
	char ip[] = "10.0.0.1", service[] = "service a";
	int port = 50000;

	if (blkin_init() < 0)
		return 1;
	blkin_init_endpoint(&endp, ip, port, service);
	CHECK(endp.port == port);
	ask(&msg);
	answer(&msg);
	return 0;
}
