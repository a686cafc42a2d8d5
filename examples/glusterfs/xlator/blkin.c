/* blkin.c - the translator as GlusterFS loads it: options, start and end. */

#include "blkin.h"

#include <glusterfs/logging.h>

static struct layer layers[] = {
	{ "client", true, true, BLKIN_NAME("cs"), BLKIN_NAME("cr") },
	{ "replica", false, false, BLKIN_NAME("cs"), BLKIN_NAME("cr") },
	{ "server", false, true, BLKIN_NAME("sr"), BLKIN_NAME("ss") },
	{ "disk", false, false, BLKIN_NAME("start"), BLKIN_NAME("end") },
};

static struct layer *layer_named(const char *name)
{
	for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++)
		if (strcmp(layers[i].name, name) == 0)
			return &layers[i];
	return NULL;
}

/* Whether a translator below understands the ids: another instance of this one, or one that sends them to a brick. */
static bool known_below(const xlator_t *this)
{
	for (const xlator_list_t *child = this->children; child; child = child->next) {
		const xlator_t *below = child->xlator;

		if (below->fops == &traced_fops || strcmp(below->type, "protocol/client") == 0 || known_below(below))
			return true;
	}
	return false;
}

static struct tracer *tracer_new(xlator_t *this)
{
	struct tracer *tracer = GF_CALLOC(1, sizeof(*tracer), MEMORY_TRACER);
	char *layer = NULL, *service = NULL, *address = NULL;
	int32_t port = 0;

	if (!tracer)
		return NULL;
	GF_OPTION_INIT("layer", layer, str, untraced);
	GF_OPTION_INIT("service", service, str, untraced);
	GF_OPTION_INIT("address", address, str, untraced);
	GF_OPTION_INIT("port", port, int32, untraced);
	blkin_init_endpoint(&tracer->endpoint, address, (int16_t)port, service ? service : this->name);
	tracer->layer = layer_named(layer);
	if (tracer->layer)
		return tracer;
	gf_log(this->name, GF_LOG_WARNING, "there is no layer %s: use client, replica, server or disk", layer);
untraced:
	GF_FREE(tracer);
	return NULL;
}

static int32_t blkin_xlator_init(xlator_t *this)
{
	struct tracer *tracer;

	if (!this->children || this->children->next) {
		gf_log(this->name, GF_LOG_ERROR, "needs exactly one subvolume");
		return -1;
	}
	blkin_init();
	this->local_pool = mem_pool_new(struct operation, 256);
	tracer = tracer_new(this);
	if (!this->local_pool || !tracer) {
		gf_log(this->name, GF_LOG_WARNING, "failed to set up tracing: operations pass untraced");
		GF_FREE(tracer);
		return 0;
	}
	tracer->passes_on = known_below(this);
	this->private = tracer;
	return 0;
}

static void blkin_xlator_fini(xlator_t *this)
{
	GF_FREE(this->private);
	this->private = NULL;
	if (this->local_pool)
		mem_pool_destroy(this->local_pool);
	this->local_pool = NULL;
}

static int32_t blkin_xlator_account(xlator_t *this)
{
	return xlator_mem_acct_init(this, MEMORY_TYPES);
}

static volume_option_t options[] = {
	{ .key = { "layer" },
	  .type = GF_OPTION_TYPE_STR,
	  .default_value = "server",
	  .description = "The translator's place in the graph: client, replica, server or disk." },
	{ .key = { "service" },
	  .type = GF_OPTION_TYPE_STR,
	  .description = "The service name of its spans; default: the volume's name." },
	{ .key = { "address" }, .type = GF_OPTION_TYPE_STR, .description = "The service's IP address." },
	{ .key = { "port" },
	  .type = GF_OPTION_TYPE_INT,
	  .min = 0,
	  .max = 65535,
	  .default_value = "0",
	  .description = "The service's port." },
	{ .key = { NULL } },
};

static struct xlator_cbks no_callbacks;

/* The one symbol that GlusterFS looks for. */
__attribute__((visibility("default"))) xlator_api_t xlator_api = {
	.init = blkin_xlator_init,
	.fini = blkin_xlator_fini,
	.mem_acct_init = blkin_xlator_account,
	.op_version = { 1 },
	.fops = &traced_fops,
	.cbks = &no_callbacks,
	.options = options,
	.identifier = "blkin",
	.category = GF_MAINTAINED,
};
