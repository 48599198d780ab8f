/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Files that are opened, or fail to be. Entry and return of the system call are matched by thread;
 * the path is read at the return, when the kernel has brought in pages that were not in memory on
 * entry.
 */
#include <uapi/linux/fcntl.h>

#define PATH_BYTES 256

struct open_event {
	u64 flags;
	u32 pid;
	u32 tid;
	u32 uid;
	s32 result;    /* the descriptor, or a negative errno */
	s32 directory; /* start of a relative path, AT_FDCWD: the current one */
	u32 mode;      /* of a file that is created */
	char comm[16];
	char path[PATH_BYTES];
};
#define COLLECTORD_EVENT struct open_event
#include "collectord.h"

struct opening {
	u64 path;
	u64 how; /* struct open_how of openat2, which has flags and mode; else 0 */
	u64 flags;
	u32 mode;
	s32 directory;
};

/* Threads within the system call. One that ends there stays until others evict it. */
BPF_TABLE("lru_hash", u64, struct opening, openings, 10240);
/* Returns whose entry was missed, and so are not reported. */
BPF_PERCPU_ARRAY(unmatched, u64, 1);

/* Keep the entry even where the gate is closed: a thread may return on another CPU. */
static inline void enter(struct opening *opening)
{
	u64 id = bpf_get_current_pid_tgid();

	if (collectord_wanted())
		openings.update(&id, opening);
}

static inline void leave(void *ctx, long result)
{
	u64 id = bpf_get_current_pid_tgid();
	struct open_event event = {};
	struct opening *opening;

	if (!collectord_wanted())
		return;
	opening = openings.lookup(&id);
	if (!opening) {
		if (collectord_open())
			unmatched.increment(0);
		return;
	}
	if ((!PARAMETER_FAILED || result < 0) && collectord_open()) {
		event.flags = opening->flags;
		event.mode = opening->mode;
		if (opening->how) {
			u64 how[2] = {}; /* flags, mode */

			bpf_probe_read_user(how, sizeof(how), (void *)opening->how);
			event.flags = how[0];
			event.mode = how[1];
		}
		event.pid = id >> 32;
		event.tid = id;
		event.uid = bpf_get_current_uid_gid();
		event.result = result;
		event.directory = opening->directory;
		bpf_get_current_comm(event.comm, sizeof(event.comm));
		bpf_probe_read_user_str(event.path, sizeof(event.path), (void *)opening->path);
		if (collectord_path_wanted(event.path))
			collectord_submit(ctx, &event);
	}
	openings.delete(&id);
}

TRACEPOINT_PROBE(syscalls, sys_enter_openat)
{
	struct opening opening = {
		.path = (u64)args->filename,
		.flags = (u32)args->flags,
		.mode = args->mode,
		.directory = args->dfd,
	};

	enter(&opening);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_openat)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_openat2)
{
	struct opening opening = {
		.path = (u64)args->filename,
		.how = (u64)args->how,
		.directory = args->dfd,
	};

	enter(&opening);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_openat2)
{
	leave(args, args->ret);
	return 1;
}

/* Newer architectures only have openat. */
#ifdef __x86_64__
TRACEPOINT_PROBE(syscalls, sys_enter_open)
{
	struct opening opening = {
		.path = (u64)args->filename,
		.flags = (u32)args->flags,
		.mode = args->mode,
		.directory = AT_FDCWD,
	};

	enter(&opening);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_open)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_creat)
{
	struct opening opening = {
		.path = (u64)args->pathname,
		.flags = O_CREAT | O_WRONLY | O_TRUNC,
		.mode = args->mode,
		.directory = AT_FDCWD,
	};

	enter(&opening);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_creat)
{
	leave(args, args->ret);
	return 1;
}
#endif
