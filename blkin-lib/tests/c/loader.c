/* A program that loads the library by dlopen(), under each of its names, and finds the functions with an underscore. */
#include <dlfcn.h>

#include "expect.h"

#define NAMES(_) \
	_(init) _(init_new_trace) _(init_trace_info) _(init_child) _(init_child_info) _(init_endpoint)       \
	_(init_string_annotation) _(init_integer_annotation) _(init_timestamp_annotation) _(record)          \
	_(get_trace_info) _(set_trace_info) _(set_trace_properties) _(pack_trace_info) _(unpack_trace_info)

/* Pointers with the original branch's types. */
static int (*p_init)(void);
static int (*p_init_endpoint)(struct blkin_endpoint *, char *, int, char *);
static int (*p_init_new_trace)(struct blkin_trace *, char *, struct blkin_endpoint *);
static int (*p_init_timestamp_annotation)(struct blkin_annotation *, char *, struct blkin_endpoint *);
static int (*p_record)(struct blkin_trace *, struct blkin_annotation *);

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(found != NULL);
	return found;
}

static void record_one(void *library)
{
	struct blkin_endpoint e;
	struct blkin_trace trace;
	struct blkin_annotation a;

#define LOOK(name) symbol(library, "_blkin_" #name), symbol(library, "blkin_" #name),
	void *all[] = { NAMES(LOOK) };
	CHECK(sizeof all / sizeof *all == 30);
	*(void **)&p_init = symbol(library, "_blkin_init");
	*(void **)&p_init_endpoint = symbol(library, "_blkin_init_endpoint");
	*(void **)&p_init_new_trace = symbol(library, "_blkin_init_new_trace");
	*(void **)&p_init_timestamp_annotation = symbol(library, "_blkin_init_timestamp_annotation");
	*(void **)&p_record = symbol(library, "_blkin_record");
	CHECK(p_init() == 0);
	CHECK(p_init_endpoint(&e, (char *)"10.0.0.9", 60000, (char *)"loaded") == 0);
	CHECK(p_init_new_trace(&trace, (char *)"by hand", &e) == 0);
	CHECK(p_init_timestamp_annotation(&a, (char *)"loaded", NULL) == 0);
	CHECK(p_record(&trace, &a) == 0);
	expect(&trace.info, "by hand", "10.0.0.9", 60000, "loaded", "loaded", "!");
	CHECK(!strcmp(*(const char **)symbol(library, "SERVER_SEND"), "ss"));
}

static int mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	int count = 0, c;

	CHECK(maps != NULL);
	while ((c = getc(maps)) != EOF)
		count += c == '\n';
	CHECK(fclose(maps) == 0);
	return count;
}

/* The number that the next new descriptor will have. */
static int next_descriptor(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0 && close(fd) == 0);
	return fd;
}

/* Loads the library many times, as a program that loads a plug-in for each request. */
static void load_again_and_again(const char *name)
{
	int fd = next_descriptor(), count = mappings(), i;

	for (i = 0; i < 1000; i++) {
		void *library = dlopen(name, RTLD_NOW);

		CHECK(library != NULL);
		*(void **)&p_init = symbol(library, "blkin_init");
		CHECK(p_init() == 0 && dlclose(library) == 0);
	}
	CHECK(next_descriptor() == fd && mappings() == count);
}

int main(void)
{
	static const char *const names[] = { "libblkin.so.0", "libblkin.so", "libblkin-front.so", "libzipkin-c.so",
					     "libzipkin-cpp.so" };
	size_t i;

	for (i = 0; i < sizeof names / sizeof *names; i++) {
		void *library = dlopen(names[i], RTLD_LAZY);

		if (!library)
			fprintf(stderr, "%s\n", dlerror());
		CHECK(library != NULL);
		record_one(library);
		/* The library stays loaded, because another thread may be recording. */
		CHECK(dlclose(library) == 0);
		CHECK(dlopen(names[0], RTLD_LAZY | RTLD_NOLOAD) != NULL);
	}
	load_again_and_again(names[0]);
	return 0;
}
