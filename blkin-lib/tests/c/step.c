/*
 * A debugger steps through these records instruction by instruction (step.gdb): each record must arrive, wherever it was stopped.
 */
#include "expect.h"

static const struct blkin_endpoint here = { "10.0.0.1", 1, "step" };
static struct blkin_trace trace;
static char text[300];

/* The debugger steps through this function, from its beginning until it returns. */
__attribute__((noinline)) void stepped(int kind)
{
	switch (kind) {
	case 0:
		BLKIN_TIMESTAMP(&trace, NULL, "event");
		break;
	case 1:
		BLKIN_KEYVAL_INTEGER(&trace, NULL, "integer", 7);
		break;
	default:
		BLKIN_KEYVAL_STRING(&trace, NULL, "string", text);
	}
}

static void recorded(const char *key, const char *value)
{
	expect(&trace.info, "root", "10.0.0.1", 1, "step", key, value);
}

static void around(void)
{
	BLKIN_TIMESTAMP(&trace, NULL, "around");
	recorded("around", "!");
}

int main(void)
{
	char value[sizeof text + 1] = "=";
	int round;

	memset(text, 'x', sizeof text - 1);
	strcat(value, text);
	blkin_init_new_trace(&trace, "root", &here);
	/* The first records also create the rings: those are not stepped through. */
	for (round = 0; round < 3; round++)
		around();
	for (round = 0; round < 3; round++) {
		stepped(0);
		recorded("event", "!");
		stepped(1);
		recorded("integer", "#7");
		stepped(2);
		recorded("string", value);
		around();
	}
	return 0;
}
