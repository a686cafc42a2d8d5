/* In the place of libblkin.so: a library that allocates, to see that forbidden.c ends whoever calls it. */
#include <stdlib.h>

extern void *kept;
void *kept;

extern void blkin_init(void);
void blkin_init(void)
{
	kept = malloc(1);
}
