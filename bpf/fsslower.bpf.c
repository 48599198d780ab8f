/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reads, writes, opens and syncs that take long in one file system. Its own functions are timed, from
 * their entry to their return, which are matched by thread and operation: a write that syncs calls
 * the function for syncs before it returns.
 */
#include <uapi/linux/ptrace.h>

struct file_event {
	u64 latency_ns;
	u64 asked;  /* bytes; 0 for what has none */
	s64 result; /* bytes, 0, or a negative errno */
	s64 offset; /* place in the file */
	u64 inode;
	u32 dev;
	u32 pid;
	u32 tid;
	u32 uid;
	char operation[8]; /* "read", "write", "open", "sync" */
	char filesystem[16];
	char comm[16];
	char name[64]; /* the last part of its path */
};
#define COLLECTORD_EVENT struct file_event
#include "collectord.h"

enum { READS, WRITES, OPENS, SYNCS };

struct call {
	u64 start_ns;
	u64 asked;
	s64 offset;
	u64 file;
	u64 iocb; /* of a read or write, else 0 */
};

/* Calls by operation and thread. One whose return was missed stays until the next, or until others evict it. */
BPF_TABLE("lru_hash", u64, struct call, calls, 10240);
BPF_PERCPU_ARRAY(unmatched, u64, 1);

#define READ_MEMBER(to, from, member) \
	bpf_probe_read_kernel(&(to), sizeof(to), (void *)((from) + COLLECTORD_AT_##member))

static inline u64 key_of(u32 operation)
{
	return (u64)operation << 32 | (u32)bpf_get_current_pid_tgid();
}

static inline void enter(u32 operation, u64 file, u64 iocb, u64 asked, s64 offset)
{
	u64 key = key_of(operation);
	struct call call = {
		.start_ns = bpf_ktime_get_ns(),
		.asked = asked,
		.offset = offset,
		.file = file,
		.iocb = iocb,
	};

	if (!collectord_wanted())
		return;
	if (calls.lookup(&key) && collectord_open())
		unmatched.increment(0);
	calls.update(&key, &call);
}

/* iocb and iter: arguments of the functions for reads and writes. */
static inline void enter_transfer(u32 operation, u64 iocb, u64 iter)
{
	u64 file = 0, asked = 0;
	s64 offset = 0;

	READ_MEMBER(file, iocb, KIOCB_KI_FILP);
	READ_MEMBER(offset, iocb, KIOCB_KI_POS);
	READ_MEMBER(asked, iter, IOV_ITER_COUNT);
	enter(operation, file, iocb, asked, offset);
}

static inline void describe(struct file_event *event, u64 file)
{
	u64 inode = 0, super = 0, type = 0, dentry = 0, text = 0;

	READ_MEMBER(inode, file, FILE_F_INODE);
	READ_MEMBER(event->inode, inode, INODE_I_INO);
	READ_MEMBER(super, inode, INODE_I_SB);
	READ_MEMBER(event->dev, super, SUPER_BLOCK_S_DEV);
	READ_MEMBER(type, super, SUPER_BLOCK_S_TYPE);
	READ_MEMBER(text, type, FILE_SYSTEM_TYPE_NAME);
	bpf_probe_read_kernel_str(event->filesystem, sizeof(event->filesystem), (void *)text);
	READ_MEMBER(dentry, file + COLLECTORD_AT_FILE_F_PATH, PATH_DENTRY);
	READ_MEMBER(text, dentry + COLLECTORD_AT_DENTRY_D_NAME, QSTR_NAME);
	bpf_probe_read_kernel_str(event->name, sizeof(event->name), (void *)text);
}

static inline void leave(struct pt_regs *ctx, u32 operation, s64 result)
{
	u64 id = bpf_get_current_pid_tgid(), key = key_of(operation);
	struct call *call = calls.lookup(&key);
	struct file_event event = {};

	if (!call)
		return;
	event.latency_ns = bpf_ktime_get_ns() - call->start_ns;
	if (event.latency_ns >= PARAMETER_MIN_TIME && collectord_open()) {
		event.asked = call->asked;
		event.result = result;
		event.offset = call->offset;
		/* Whoever appends is told the place on the way. One that is still in flight has none. */
		if (call->iocb && result > 0) {
			READ_MEMBER(event.offset, call->iocb, KIOCB_KI_POS);
			event.offset -= result;
		}
		describe(&event, call->file);
		event.pid = id >> 32;
		event.tid = id;
		event.uid = bpf_get_current_uid_gid();
		bpf_get_current_comm(event.comm, sizeof(event.comm));
		if (operation == READS)
			__builtin_memcpy(event.operation, "read", sizeof("read"));
		else if (operation == WRITES)
			__builtin_memcpy(event.operation, "write", sizeof("write"));
		else if (operation == OPENS)
			__builtin_memcpy(event.operation, "open", sizeof("open"));
		else
			__builtin_memcpy(event.operation, "sync", sizeof("sync"));
		collectord_submit(ctx, &event);
	}
	calls.delete(&key);
}

int enter_read(struct pt_regs *ctx)
{
	enter_transfer(READS, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx));
	return 0;
}

int leave_read(struct pt_regs *ctx)
{
	leave(ctx, READS, PT_REGS_RC(ctx));
	return 0;
}

int enter_write(struct pt_regs *ctx)
{
	enter_transfer(WRITES, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx));
	return 0;
}

int leave_write(struct pt_regs *ctx)
{
	leave(ctx, WRITES, PT_REGS_RC(ctx));
	return 0;
}

/* Its arguments are an inode and a file. It returns an int, as that for syncs: half of the register. */
int enter_open(struct pt_regs *ctx)
{
	enter(OPENS, PT_REGS_PARM2(ctx), 0, 0, 0);
	return 0;
}

int leave_open(struct pt_regs *ctx)
{
	leave(ctx, OPENS, (int)PT_REGS_RC(ctx));
	return 0;
}

/* Its arguments are a file, and the first and the last byte. */
int enter_sync(struct pt_regs *ctx)
{
	enter(SYNCS, PT_REGS_PARM1(ctx), 0, 0, PT_REGS_PARM2(ctx));
	return 0;
}

int leave_sync(struct pt_regs *ctx)
{
	leave(ctx, SYNCS, (int)PT_REGS_RC(ctx));
	return 0;
}
