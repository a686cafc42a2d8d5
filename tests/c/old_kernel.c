/*
 * Runs a command as on a kernel before Linux 5.16, without futex_waitv:
 *
 *   old_kernel COMMAND [ARGUMENT]...
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { FUTEX_WAITV = 449 };

int main(int argc, char **argv)
{
	struct sock_filter is_unknown[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FUTEX_WAITV, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(is_unknown) / sizeof(is_unknown[0]), is_unknown };

	if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
		perror("old_kernel");
		return 125;
	}
	execv(argv[1], argv + 1);
	perror(argv[1]);
	return 126;
}
