/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reads, writes and syncs of files that take long. Entry and return of the system call are matched
 * by thread; the file is looked up at the return, and only if it took long: where another thread has
 * closed it meanwhile, it is not known.
 */
#include <uapi/linux/ptrace.h>

typedef int rwf_t; /* of arguments of tracepoints, which name it */

#define TYPE_MASK 0170000
#define TYPE_FILE 0100000

struct file_event {
	u64 latency_ns;
	u64 asked;  /* bytes; 0 for what has no single number of them */
	s64 result; /* bytes, or a negative errno */
	u64 inode;
	u32 dev;
	u32 pid;
	u32 tid;
	u32 uid;
	char operation[8]; /* "read", "write", "sync" */
	char filesystem[16];
	char comm[16];
	char name[64]; /* the last part of its path */
};
#define COLLECTORD_EVENT struct file_event
#include "collectord.h"

enum { READS, WRITES, SYNCS };

struct call {
	u64 start_ns;
	u64 asked;
	u32 fd;
	u32 operation;
};

/* Threads within a system call. One that ends there stays until others evict it. */
BPF_TABLE("lru_hash", u64, struct call, calls, 10240);

#define READ_MEMBER(to, from, member) \
	bpf_probe_read_kernel(&(to), sizeof(to), (void *)((from) + COLLECTORD_AT_##member))

static inline void enter(u32 operation, u64 fd, u64 asked)
{
	u64 id = bpf_get_current_pid_tgid();
	struct call call = {
		.start_ns = bpf_ktime_get_ns(),
		.asked = asked,
		.fd = fd,
		.operation = operation,
	};

	if (collectord_wanted())
		calls.update(&id, &call);
}

/* The struct file of a descriptor of the current process, 0 if there is none. */
static inline u64 file_of(u32 fd)
{
	u64 files = 0, table = 0, array = 0, file = 0;
	u32 max = 0;

	READ_MEMBER(files, bpf_get_current_task(), TASK_STRUCT_FILES);
	READ_MEMBER(table, files, FILES_STRUCT_FDT);
	READ_MEMBER(max, table, FDTABLE_MAX_FDS);
	if (fd >= max)
		return 0;
	READ_MEMBER(array, table, FDTABLE_FD);
	bpf_probe_read_kernel(&file, sizeof(file), (void *)(array + fd * sizeof(u64)));
	return file;
}

/* Describe a plain file; false if it is none. */
static inline bool describe(struct file_event *event, u64 file)
{
	u64 inode = 0, super = 0, type = 0, dentry = 0, text = 0;
	u16 mode = 0;

	READ_MEMBER(inode, file, FILE_F_INODE);
	READ_MEMBER(mode, inode, INODE_I_MODE);
	if ((mode & TYPE_MASK) != TYPE_FILE)
		return false;
	READ_MEMBER(event->inode, inode, INODE_I_INO);
	READ_MEMBER(super, inode, INODE_I_SB);
	READ_MEMBER(event->dev, super, SUPER_BLOCK_S_DEV);
	READ_MEMBER(type, super, SUPER_BLOCK_S_TYPE);
	READ_MEMBER(text, type, FILE_SYSTEM_TYPE_NAME);
	bpf_probe_read_kernel_str(event->filesystem, sizeof(event->filesystem), (void *)text);
	READ_MEMBER(dentry, file + COLLECTORD_AT_FILE_F_PATH, PATH_DENTRY);
	READ_MEMBER(text, dentry + COLLECTORD_AT_DENTRY_D_NAME, QSTR_NAME);
	bpf_probe_read_kernel_str(event->name, sizeof(event->name), (void *)text);
	return true;
}

static inline bool is_of(const char *filesystem)
{
	const char wanted[16] = PARAMETER_FILESYSTEM;

#pragma unroll
	for (int at = 0; at < sizeof(wanted); at++) {
		if (filesystem[at] != wanted[at])
			return false;
		if (!wanted[at])
			return true;
	}
	return true;
}

static inline void leave(void *ctx, long result)
{
	u64 id = bpf_get_current_pid_tgid();
	struct call *call = calls.lookup(&id);
	struct file_event event = {};

	if (!call)
		return;
	event.latency_ns = bpf_ktime_get_ns() - call->start_ns;
	if (event.latency_ns >= PARAMETER_MIN_TIME && collectord_open() &&
	    describe(&event, file_of(call->fd)) &&
	    (sizeof(PARAMETER_FILESYSTEM) == 1 || is_of(event.filesystem))) {
		event.asked = call->asked;
		event.result = result;
		event.pid = id >> 32;
		event.tid = id;
		event.uid = bpf_get_current_uid_gid();
		bpf_get_current_comm(event.comm, sizeof(event.comm));
		if (call->operation == READS)
			__builtin_memcpy(event.operation, "read", sizeof("read"));
		else if (call->operation == WRITES)
			__builtin_memcpy(event.operation, "write", sizeof("write"));
		else
			__builtin_memcpy(event.operation, "sync", sizeof("sync"));
		collectord_submit(ctx, &event);
	}
	calls.delete(&id);
}

TRACEPOINT_PROBE(syscalls, sys_enter_read)
{
	enter(READS, args->fd, args->count);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_read)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_pread64)
{
	enter(READS, args->fd, args->count);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_pread64)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_readv)
{
	enter(READS, args->fd, 0);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_readv)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_preadv)
{
	enter(READS, args->fd, 0);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_preadv)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_preadv2)
{
	enter(READS, args->fd, 0);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_preadv2)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_write)
{
	enter(WRITES, args->fd, args->count);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_write)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_pwrite64)
{
	enter(WRITES, args->fd, args->count);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_pwrite64)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_writev)
{
	enter(WRITES, args->fd, 0);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_writev)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_pwritev)
{
	enter(WRITES, args->fd, 0);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_pwritev)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_pwritev2)
{
	enter(WRITES, args->fd, 0);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_pwritev2)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_fsync)
{
	enter(SYNCS, args->fd, 0);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_fsync)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_fdatasync)
{
	enter(SYNCS, args->fd, 0);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_fdatasync)
{
	leave(args, args->ret);
	return 1;
}
