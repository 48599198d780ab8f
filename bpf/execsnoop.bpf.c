/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Programs that are executed. A successful exec is seen at sched_process_exec, whoever started it;
 * a failed one where its system call returns.
 */
#include <uapi/linux/ptrace.h>

#define FILENAME_BYTES 256
#if PARAMETER_ARGS
#define ARGS_BYTES ((PARAMETER_ARGS_BYTES + 7) / 8 * 8)
#else
#define ARGS_BYTES 8 /* stays empty: the event's fields are always the same */
#endif

struct exec_event {
	u32 pid;
	u32 parent; /* the parent's pid */
	u32 tid;    /* the calling thread, which is gone if it was not the first */
	u32 uid;
	s32 result;
	char comm[16]; /* of the new program; if it failed, of the caller */
	char filename[FILENAME_BYTES];
	u16 arg_count;	       /* arguments in args */
	u16 args_cut;	       /* 1: there are more, or some could not be read */
	char args[ARGS_BYTES]; /* with a space between two */
};
#define COLLECTORD_EVENT struct exec_event
#include "collectord.h"

struct scratch {
	struct exec_event event __attribute__((aligned(8))); /* cleared by words */
#if PARAMETER_ARGS
	char spill[ARGS_BYTES]; /* room for the excess of the last argument */
#endif
};

/* Too large for the stack. Programs on tracepoints do not nest on a CPU, nor are they preempted. */
BPF_PERCPU_ARRAY(scratch, struct scratch, 1);
/* Failures whose entry was missed, and so are not reported. */
BPF_PERCPU_ARRAY(unmatched, u64, 1);

static inline u32 parent_pid(void)
{
	u64 task = bpf_get_current_task();
	u64 parent = 0;
	u32 pid = 0;

	bpf_probe_read_kernel(&parent, sizeof(parent),
			      (void *)(task + COLLECTORD_AT_TASK_STRUCT_REAL_PARENT));
	bpf_probe_read_kernel(&pid, sizeof(pid), (void *)(parent + COLLECTORD_AT_TASK_STRUCT_TGID));
	return pid;
}

static inline struct scratch *prepare(u64 id, u32 uid)
{
	u32 zero = 0;
	struct scratch *room;

	if (!collectord_wanted() || !collectord_open())
		return NULL;
	room = scratch.lookup(&zero);
	if (!room)
		return NULL;
	__builtin_memset(&room->event, 0, offsetof(struct exec_event, args));
	for (u32 i = 0; i < ARGS_BYTES / sizeof(u32); i++)
		((volatile u32 *)room->event.args)[i] = 0;
	room->event.pid = id >> 32;
	room->event.parent = parent_pid();
	room->event.tid = id;
	room->event.uid = uid;
	bpf_get_current_comm(room->event.comm, sizeof(room->event.comm));
	return room;
}

#if PARAMETER_ARGS
#define ARGUMENTS_MAX 64

/* Read the strings at `argv`, an array of pointers of `width` bytes that ends with NULL. */
static inline void read_arguments(struct scratch *room, u64 argv, u32 width)
{
	struct exec_event *event = &room->event;
	bool complete = false;
	u64 used = 0; /* 64 bits: else the verifier loses the checked limit */
	u32 i;

	for (i = 0; i <= ARGUMENTS_MAX; i++) {
		u64 argument = 0;
		s64 bytes;

		if (bpf_probe_read_user(&argument, width, (void *)(argv + i * width)))
			break;
		if (!argument) {
			complete = used <= ARGS_BYTES;
			break;
		}
		if (i == ARGUMENTS_MAX || used >= ARGS_BYTES)
			break;
		/* At most args and spill together, whatever part of args is used. */
		bytes = bpf_probe_read_user_str(&event->args[used], ARGS_BYTES, (void *)argument);
		if (bytes <= 0)
			break;
		if (used)
			event->args[used - 1] = ' ';
		used += bytes;
	}
	event->args[ARGS_BYTES - 1] = 0;
	event->arg_count = i;
	event->args_cut = !complete;
}

/*
 * Read the new program's arguments from its own stack: it begins with their number and the
 * pointers to them, and the kernel has just written all of it. The caller's memory is already
 * gone.
 */
static inline void read_new_arguments(struct scratch *room)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	u64 stack = PT_REGS_SP(regs);
	u64 word = 0;
	u32 width = 8;

	bpf_probe_read_user(&word, sizeof(word), (void *)stack);
	if (word >> 32) /* words of 32 bits: the number shares its word */
		width = 4;
	read_arguments(room, stack + width, width);
}
#endif

#if PARAMETER_FAILED
struct attempt {
	u64 filename;
	u64 argv;
};

/* Threads within the system call. A thread killed there stays until others evict it. */
BPF_TABLE("lru_hash", u64, struct attempt, attempts, 10240);

static inline void enter(const void *filename, const void *argv)
{
	u64 id = bpf_get_current_pid_tgid();
	struct attempt attempt = {.filename = (u64)filename, .argv = (u64)argv};

	attempts.update(&id, &attempt);
}

static inline void leave(void *ctx, long result)
{
	u64 id = bpf_get_current_pid_tgid();
	struct attempt *found;
	struct scratch *room;
	struct attempt attempt;

	if (result >= 0)
		return;
	room = prepare(id, bpf_get_current_uid_gid());
	found = attempts.lookup(&id);
	if (!found) {
		if (room)
			unmatched.increment(0);
		return;
	}
	attempt = *found;
	attempts.delete(&id);
	if (!room)
		return;
	room->event.result = result;
	/* Not on entry: the kernel has since brought in pages that were not in memory then. */
	bpf_probe_read_user_str(room->event.filename, sizeof(room->event.filename),
				(void *)attempt.filename);
#if PARAMETER_ARGS
	read_arguments(room, attempt.argv, sizeof(u64));
#endif
	if (collectord_path_wanted(room->event.filename))
		collectord_submit(ctx, &room->event);
}

TRACEPOINT_PROBE(syscalls, sys_enter_execve)
{
	enter(args->filename, args->argv);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_execve)
{
	leave(args, args->ret);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_execveat)
{
	enter(args->filename, args->argv);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_execveat)
{
	leave(args, args->ret);
	return 1;
}
#endif

TRACEPOINT_PROBE(sched, sched_process_exec)
{
	u64 id = bpf_get_current_pid_tgid();
	struct scratch *room = prepare(id, bpf_get_current_uid_gid());

#if PARAMETER_FAILED
	u64 caller = id >> 32 << 32 | (u32)args->old_pid;

	attempts.delete(&caller);
#endif
	if (!room)
		return 1;
	room->event.tid = args->old_pid;
	bpf_probe_read_kernel_str(room->event.filename, sizeof(room->event.filename),
				  (char *)args + (args->data_loc_filename & 0xffff));
#if PARAMETER_ARGS
	read_new_arguments(room);
#endif
	if (collectord_path_wanted(room->event.filename))
		collectord_submit(args, &room->event);
	return 1;
}
