/*
 * blkin-front.h - the header that programs of the original branch include.
 *
 * There, blkin_init() loaded the library and resolved its functions; here they are linked, so it is all in
 * zipkin_c.h. Programs that load by hand find every function under its name with a leading underscore as
 * well: dlsym(dlopen("libblkin.so.0", RTLD_LAZY), "_blkin_record").
 */
#ifndef BLKIN_FRONT_H
#define BLKIN_FRONT_H

#include "zipkin_c.h"

#endif /* BLKIN_FRONT_H */
