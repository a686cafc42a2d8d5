/* Records an annotation every millisecond, until it is killed. */
#include <unistd.h>
#include <zipkin_c.h>

int main(void)
{
	struct blkin_endpoint endpoint;
	struct blkin_trace trace;

	blkin_init_endpoint(&endpoint, "127.0.0.1", 1, "goes_on");
	for (;;) {
		blkin_init_new_trace(&trace, "step", &endpoint);
		BLKIN_TIMESTAMP(&trace, NULL, "end");
		usleep(1000);
	}
}
