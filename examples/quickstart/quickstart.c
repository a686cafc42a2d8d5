#include <stdio.h>
#include <unistd.h>
#include <zipkin_c.h>

int main(void)
{
	struct blkin_endpoint gateway, osd;
	struct blkin_trace put, write;

	blkin_init_endpoint(&gateway, "127.0.0.1", 8080, "gateway");
	blkin_init_endpoint(&osd, "127.0.0.1", 6800, "osd.0");

	blkin_init_new_trace(&put, "put", &gateway);          /* a request comes in */
	BLKIN_TIMESTAMP(&put, NULL, SERVER_RECV);
	BLKIN_KEYVAL_STRING(&put, NULL, "object", "alpha");

	blkin_init_child(&write, &put, &osd, "journal write"); /* the OSD does a part of it */
	BLKIN_TIMESTAMP(&write, NULL, "start");
	usleep(2000);
	BLKIN_KEYVAL_INTEGER(&write, NULL, "bytes", 4096);
	BLKIN_TIMESTAMP(&write, NULL, "end");

	BLKIN_TIMESTAMP(&put, NULL, SERVER_SEND);             /* the answer goes out */
	printf("blkin trace %016llx\n", (unsigned long long)put.info.trace_id);
	return 0;
}
