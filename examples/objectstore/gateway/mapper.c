/* mapper.c - the layer that knows where an object lives. */
#include <stdio.h>

#include "gateway.h"

unsigned mapper_find(struct gateway *gateway, const struct msg *op, const span *vlmc)
{
	span handling;
	unsigned pg;
	char name[16];

	span_child(&handling, vlmc, "mapper service", &gateway->mapper);
	span_event(&handling, "Mapping object");
	pthread_mutex_lock(&gateway->lock);
	pg = gateway->established ? osdmap_pg_of(&gateway->map, op->name) : 0;
	pthread_mutex_unlock(&gateway->lock);
	snprintf(name, sizeof name, "%d.%x", POOL, pg);
	span_string(&handling, "PG", name);
	span_pad(&handling, LAYER_MAPPER, op->annotations);
	span_event(&handling, SPAN_ENDED);
	return pg;
}
