/*
 * Records one annotation, creates a file "recorded" in the folder given as its first argument, and waits to be killed, so
 * it never offers itself a second time.
 */
#include <blkin/zipkin_c.h>
#include <fcntl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct blkin_endpoint endpoint;
	struct blkin_trace trace;

	if (argc != 2 || chdir(argv[1]))
		return 2;
	blkin_init_endpoint(&endpoint, "127.0.0.1", 1, "waits");
	blkin_init_new_trace(&trace, "wait", &endpoint);
	BLKIN_TIMESTAMP(&trace, NULL, "begin");
	if (creat("recorded", 0644) < 0)
		return 1;
	for (;;)
		pause();
}
