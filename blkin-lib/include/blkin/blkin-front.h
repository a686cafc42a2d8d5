/*
 * blkin-front.h - the header that programs of the original branch include.
 *
 * There, blkin_init() loaded the library and resolved its functions. Here programs link the library, so all
 * declarations are in zipkin_c.h. For programs that use dlsym(), the functions of the older branches also exist with a
 * leading underscore: dlsym(dlopen("libblkin.so.0", RTLD_LAZY), "_blkin_record").
 */
#ifndef BLKIN_FRONT_H
#define BLKIN_FRONT_H

#include "zipkin_c.h"

#endif /* BLKIN_FRONT_H */
