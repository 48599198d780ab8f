/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The times that tasks are blocked: the stacks of each task that leaves its CPU, and the time
 * until it has one again, which is its blocked time and the time that it then waited for a CPU.
 *
 * A task is identified by the address of its task_struct, which the raw tracepoint passes; no
 * member of it is read. Ids, name and stacks are those of the current task, which is the one that
 * leaves.
 *
 * Tasks are followed whatever the gate of a CPU. A time is counted, and the fate of its stacks, if
 * the gate is open where and when the task comes back.
 *
 * This runs under a lock of the scheduler with interrupts off, and never inside itself: plain adds
 * are exact in maps per CPU.
 */
#include <uapi/linux/errno.h>
#include "collectord.h"

#if PARAMETER_KERNEL_ONLY && PARAMETER_USER_ONLY
#error "kernel_only and user_only exclude each other: give one of them, or none for both stacks"
#endif

/*
 * Negative ids of stacks are errors: -EEXIST if another one has its place in `stacks`, -EFAULT if
 * there is no stack, as for a kernel thread in user mode. The latter also stands for stacks that
 * were not requested.
 */
#define NO_STACK -EFAULT

/* Frames of this program and its callers, up to __schedule. */
#define KERNEL_SKIP 3

/* A task that is off its CPU. */
struct left_task {
	u64 since_ns;
	u32 tgid;
	u32 pid;
	s32 kernel_stack_id;
	s32 user_stack_id;
	char comm[16];
};

struct off_cpu_key {
	u32 tgid;
	u32 pid;
	s32 kernel_stack_id;
	s32 user_stack_id;
	char comm[16];
};

struct off_cpu_time {
	u64 us;
	u64 times;
};

struct offcputime_counts {
	u64 times;	     /* requested times that tasks were off their CPU */
	u64 ns;		     /* sum of all of these */
	u64 untracked;	     /* times that were not measured: `left` was full */
	u64 unmatched;	     /* likewise: the switch to the task was not seen */
	u64 unrecorded;	     /* of `times`, those that are not in `off_cpu`, which was full */
	u64 unrecorded_ns;   /* of `ns`, likewise */
	u64 stacks_collided; /* of `times`, stacks whose place was taken by another */
	u64 stacks_failed;   /* likewise, stacks that could not be taken for any other reason */
};

BPF_HASH(left, u64, struct left_task, PARAMETER_MAX_TASKS);
BPF_HASH(off_cpu, struct off_cpu_key, struct off_cpu_time, PARAMETER_MAX_ENTRIES);
BPF_STACK_TRACE(stacks, PARAMETER_MAX_STACKS);
BPF_PERCPU_ARRAY(counts, struct offcputime_counts, 1);

/* Bits of states as the kernel reports them, and one for preempted tasks. */
#define STATE_INTERRUPTIBLE 0x01
#define STATE_UNINTERRUPTIBLE 0x02
#define STATE_STOPPED 0x04
#define STATE_TRACED 0x08
#define STATE_PARKED 0x40
#define STATE_IDLE 0x80
#define STATE_RUNNABLE 0x100
#define STATES_BLOCKED 0xcf

/* Bits used only inside the kernel. */
#define TASK_DEAD_BIT 0x80
#define TASK_NOLOAD_BIT 0x400
#define TASK_RTLOCK_WAIT_BIT 0x1000
#define TASK_FROZEN_BIT 0x8000

#define STATE_LETTER(at) ((PARAMETER_STATE "\0\0\0\0\0\0\0")[at])
#define STATE_BIT(letter)                          \
	((letter) == 'S'   ? STATE_INTERRUPTIBLE   \
	 : (letter) == 'D' ? STATE_UNINTERRUPTIBLE \
	 : (letter) == 'T' ? STATE_STOPPED         \
	 : (letter) == 't' ? STATE_TRACED          \
	 : (letter) == 'P' ? STATE_PARKED          \
	 : (letter) == 'I' ? STATE_IDLE            \
	 : (letter) == 'R' ? STATE_RUNNABLE        \
			   : 0)
#define STATE_KNOWN(at) (STATE_LETTER(at) == 0 || STATE_BIT(STATE_LETTER(at)) != 0)
#define STATES_KNOWN                                                                               \
	(STATE_KNOWN(0) && STATE_KNOWN(1) && STATE_KNOWN(2) && STATE_KNOWN(3) && STATE_KNOWN(4) && \
	 STATE_KNOWN(5) && STATE_KNOWN(6))
#define STATES_GIVEN                                                                            \
	(STATE_BIT(STATE_LETTER(0)) | STATE_BIT(STATE_LETTER(1)) | STATE_BIT(STATE_LETTER(2)) | \
	 STATE_BIT(STATE_LETTER(3)) | STATE_BIT(STATE_LETTER(4)) | STATE_BIT(STATE_LETTER(5)) | \
	 STATE_BIT(STATE_LETTER(6)))
#define STATES (STATES_GIVEN ? STATES_GIVEN : STATES_BLOCKED)

/* Calls of this with an unknown letter do not compile; #if could not check them. */
static inline void check_states(void)
	__attribute__((diagnose_if(!STATES_KNOWN, "state takes the letters S D T t P I R", "error")));
static inline void check_states(void)
{
}

/* Returns the state in which a task leaves; 0 if it never comes back. */
static inline u32 state_of(bool preempted, u32 state)
{
	if (preempted || !state)
		return STATE_RUNNABLE;
	if (state & TASK_DEAD_BIT)
		return 0;
	if (state & STATE_UNINTERRUPTIBLE && state & TASK_NOLOAD_BIT)
		return STATE_IDLE;
	if (state & (TASK_RTLOCK_WAIT_BIT | TASK_FROZEN_BIT))
		return STATE_UNINTERRUPTIBLE;
	return state & STATES_BLOCKED;
}

static inline struct offcputime_counts *this_cpu_counts(void)
{
	u32 zero = 0;

	return counts.lookup(&zero);
}

static inline void count_untracked(void)
{
	struct offcputime_counts *found = this_cpu_counts();

	if (found && collectord_open())
		found->untracked++;
}

static inline void count_unmatched(void)
{
	struct offcputime_counts *found = this_cpu_counts();

	if (found && collectord_open())
		found->unmatched++;
}

static inline void count_stack(struct offcputime_counts *found, s32 id)
{
	if (id == -EEXIST)
		found->stacks_collided++;
	else if (id < 0)
		found->stacks_failed++;
}

/*
 * Count a time whose end was not seen. What is noted of it must not stay: the next return would end
 * it, be it of this task or of a later one at its address.
 */
static inline void forget(u64 task)
{
	if (!left.lookup(&task))
		return;
	count_unmatched();
	left.delete(&task);
}

/* Note that the current task leaves. The idle task of each CPU has the id 0. */
static inline void leave(struct bpf_raw_tracepoint_args *ctx, u64 now_ns)
{
	u64 task = ctx->args[1];
	u64 id = bpf_get_current_pid_tgid();
	struct left_task entry = {.since_ns = now_ns, .tgid = id >> 32, .pid = id};
	int error;

	if (!entry.pid || !collectord_wanted())
		return;
	check_states();
	if (!(state_of((u8)ctx->args[0], ctx->args[3]) & STATES)) {
		forget(task);
		return;
	}
	entry.kernel_stack_id = NO_STACK;
	entry.user_stack_id = NO_STACK;
#if !PARAMETER_USER_ONLY
	entry.kernel_stack_id = stacks.get_stackid(ctx, KERNEL_SKIP);
#endif
#if !PARAMETER_KERNEL_ONLY
	entry.user_stack_id = stacks.get_stackid(ctx, BPF_F_USER_STACK);
#endif
	bpf_get_current_comm(&entry.comm, sizeof(entry.comm));
	error = left.insert(&task, &entry);
	if (error == -EEXIST) {
		count_unmatched();
		error = left.update(&task, &entry);
	}
	if (error)
		count_untracked();
}

static inline void record(struct left_task *entry, u64 ns)
{
	struct offcputime_counts *found = this_cpu_counts();
	struct off_cpu_key key = {
		.tgid = entry->tgid,
		.pid = entry->pid,
		.kernel_stack_id = entry->kernel_stack_id,
		.user_stack_id = entry->user_stack_id,
	};
	struct off_cpu_time zero = {};
	struct off_cpu_time *time;

	if (!found)
		return;
	found->times++;
	found->ns += ns;
#if !PARAMETER_USER_ONLY
	count_stack(found, entry->kernel_stack_id);
#endif
#if !PARAMETER_KERNEL_ONLY
	if (entry->user_stack_id != NO_STACK) /* a kernel thread has none */
		count_stack(found, entry->user_stack_id);
#endif
	__builtin_memcpy(key.comm, entry->comm, sizeof(key.comm));
	time = off_cpu.lookup(&key);
	if (!time) {
		off_cpu.insert(&key, &zero);
		time = off_cpu.lookup(&key);
	}
	if (!time) {
		found->unrecorded++;
		found->unrecorded_ns += ns;
		return;
	}
	__sync_fetch_and_add(&time->us, (ns + 500) / 1000);
	__sync_fetch_and_add(&time->times, 1);
}

/* args: whether it was preempted, the task that leaves, the one that comes, state of the former. */
RAW_TRACEPOINT_PROBE(sched_switch)
{
	u64 next = ctx->args[2];
	u64 now_ns = bpf_ktime_get_ns();
	struct left_task *entry;
	u64 ns;

	leave(ctx, now_ns);
	entry = left.lookup(&next);
	if (!entry)
		return 0;
	ns = now_ns - entry->since_ns;
	if (ns >= PARAMETER_MIN_US * 1000ULL && collectord_open())
		record(entry, ns);
	left.delete(&next);
	return 0;
}
