/*
 * Preloaded: ends a program whose libblkin.so allocates memory, or calls libc's close(). A record may be made in a handler
 * that interrupted an allocation, or when there is no memory left. libc's close() is a cancellation point, and would end a
 * thread that is to be cancelled.
 */
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

/* The addresses of the library's code. */
static uintptr_t begin, end;

static int look(struct dl_phdr_info *info, size_t bytes, void *unused)
{
	int i;

	(void)bytes;
	(void)unused;
	if (strstr(info->dlpi_name, "/libblkin.so") == NULL)
		return 0;
	for (i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X) != 0) {
			begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			end = begin + info->dlpi_phdr[i].p_memsz;
		}
	return 1;
}

__attribute__((constructor)) static void look_for_library(void)
{
	dl_iterate_phdr(look, NULL);
}

static void refuse_library(const char *call, const void *caller)
{
	uintptr_t from = (uintptr_t)caller;

	if (from < begin || from >= end)
		return;
	dprintf(STDERR_FILENO, "libblkin.so called %s\n", call);
	abort();
}

void *malloc(size_t bytes)
{
	refuse_library("malloc", __builtin_return_address(0));
	return __libc_malloc(bytes);
}

void *calloc(size_t members, size_t bytes)
{
	refuse_library("calloc", __builtin_return_address(0));
	return __libc_calloc(members, bytes);
}

void *realloc(void *memory, size_t bytes)
{
	refuse_library("realloc", __builtin_return_address(0));
	return __libc_realloc(memory, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
	refuse_library("posix_memalign", __builtin_return_address(0));
	*memory = __libc_memalign(alignment, bytes);
	return *memory != NULL ? 0 : ENOMEM;
}

void free(void *memory)
{
	refuse_library("free", __builtin_return_address(0));
	__libc_free(memory);
}

int close(int fd)
{
	refuse_library("close", __builtin_return_address(0));
	return (int)syscall(SYS_close, fd);
}
