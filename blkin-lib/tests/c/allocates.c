/* A library in place of libblkin.so that allocates memory, to test that forbidden.c ends the program. */
#include <stdlib.h>

extern void *kept;
void *kept;

extern void blkin_init(void);
void blkin_init(void)
{
	kept = malloc(1);
}
