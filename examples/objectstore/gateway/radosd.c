/* radosd.c - the layer between the volume world and librados. */
#include "gateway.h"

int radosd_run(struct gateway *gateway, const struct msg *op, unsigned pg, const span *vlmc, struct msg *reply)
{
	span handling;
	int rc;

	span_child(&handling, vlmc, "radosd service", &gateway->radosd);
	span_event(&handling, "Request received");
	span_event(&handling, "Calling librados");
	rc = objecter_run(gateway, op, pg, &handling, reply);
	span_pad(&handling, LAYER_RADOSD, op->annotations);
	span_event(&handling, SPAN_ENDED);
	return rc;
}
