//go:build ignore

/*
 * The first process of the PID namespace that the sandbox's processes are in, without
 * the agent. It shows the namespace's /proc at the path in its first argument, says so
 * on standard output with one byte, and does nothing more: the kernel reaps what is
 * handed to it, since it ignores SIGCHLD (wait(2)). The agent stops it then, so that a
 * clone of the machine need not run it. It has no rights and an empty root, because
 * root of the sandbox can do with it what it likes.
 *
 * There is no C library.
 */
#include <stddef.h>
#include <stdint.h>
#include <asm/unistd.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <linux/signal.h>

static long sys(long n, long a, long b, long c, long d, long e)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
	long got;
	__asm__ volatile("syscall" : "=a"(got) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
	return got;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
#endif
}

enum { MNT_DETACH = 2, UMOUNT_NOFOLLOW = 8 }; /* of linux/fs.h */

/* As the kernel has it; the C library's is another one. */
struct action { void *handler; unsigned long flags; void *restorer; uint64_t mask; };

__attribute__((noreturn)) void begin(long *stack)
{
	const char *path = stack[0] > 1 ? (const char *)stack[2] : "/proc";
	const uint64_t all = ~0UL;
	const struct action ignore = { .handler = (void *)1 };
	struct __user_cap_header_struct version = { .version = _LINUX_CAPABILITY_VERSION_3 };
	const struct __user_cap_data_struct none[2] = { 0 };
	long err = 0;
	err |= sys(__NR_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, sizeof all, 0);
	err |= sys(__NR_rt_sigaction, SIGCHLD, (long)&ignore, 0, sizeof ignore.mask, 0);
	while (sys(__NR_umount2, (long)path, MNT_DETACH | UMOUNT_NOFOLLOW, 0, 0, 0) == 0)
		; /* who unmounts one must not get at another one below */
	err |= sys(__NR_mount, (long)"proc", (long)path, (long)"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0);
	err |= sys(__NR_chdir, (long)path, 0, 0, 0, 0);
	err |= sys(__NR_chroot, (long)".", 0, 0, 0, 0);
	err |= sys(__NR_capset, (long)&version, (long)none, 0, 0, 0);
	if (err == 0)
		sys(__NR_write, 1, (long)"!", 1, 0, 0);
	sys(__NR_close_range, 0, ~0U, 0, 0, 0);
	while (err == 0)
		sys(__NR_rt_sigsuspend, (long)&all, sizeof all, 0, 0, 0);
	sys(__NR_exit_group, 1, 0, 0, 0, 0);
	__builtin_unreachable();
}

__asm__(
	".globl _start\n"
	"_start:\n"
#if defined(__x86_64__)
	"	xor %ebp, %ebp\n"
	"	mov %rsp, %rdi\n"
	"	and $-16, %rsp\n"
	"	call begin\n"
#elif defined(__aarch64__)
	"	mov x0, sp\n"
	"	bl begin\n"
#endif
);
