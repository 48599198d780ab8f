/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Requests to block devices, each reported when the device has completed it. The tracepoints
 * identify a request by device, sector and operation only. Several with the same key may be in
 * progress at once: each has a lane, and a completion counts for the oldest. Every completion is
 * reported, without times and process if its request is unknown.
 */
struct io_event {
	u64 sector;
	u64 latency_ns; /* from issue to completion; 0 if the issue was not seen */
	u64 queue_ns;	/* from insertion into a queue to issue; 0 if it was issued at once */
	u32 dev;	/* in the kernel's format: major << 20 | minor */
	u32 bytes;
	s32 error; /* 0, or a negative errno */
	u32 pid;   /* task that inserted it, or else issued it */
	u32 tid;
	char rwbs[12]; /* in the tracepoint's format: R, W, D, F, then flags */
	char comm[16];
};
#define COLLECTORD_EVENT struct io_event
#include "collectord.h"

#define LANES 4
#define STALE_NS 1000000000ULL

struct request_key {
	u64 sector;
	u32 dev;
	u16 operation; /* first letter of rwbs, and the second after F: flags may change on the way */
	u16 lane;
};

struct request_state {
	u64 inserted_ns; /* 0: not seen */
	u64 issued_ns;	 /* 0: it waits in a queue */
	u32 sectors;
	u32 requeued; /* 1: it waits again, and keeps its owner and its first insertion */
	u32 pid;
	u32 tid;
	u32 wanted; /* whether its owner passes the filters */
	char comm[16];
};

#define OF_SOME (PARAMETER_PID || sizeof(PARAMETER_COMM) > 1 || PARAMETER_CGROUP)

/*
 * Requests in progress. One whose completion was missed, or that was merged into another, stays
 * until a request with its key takes its lane, or until others evict it.
 */
BPF_TABLE("lru_hash", struct request_key, struct request_state, requests, PARAMETER_REQUESTS);
/* The number of requests beyond the first lane, or more. At 0 only the first lane is checked. */
BPF_ARRAY(crowded, s64, 1);
/* Completions whose issue was not seen, and so are reported without times and process. */
BPF_PERCPU_ARRAY(unmatched, u64, 1);

/* Fill the key. False for a request that is not followed: another device, or a driver's own
 * command. */
static inline bool fill_key(struct request_key *key, u32 dev, u64 sector, const char *rwbs)
{
	char letters[2] = {};

	if (PARAMETER_MAJOR >= 0 && dev >> 20 != PARAMETER_MAJOR)
		return false;
	if (PARAMETER_MINOR >= 0 && (dev & 0xfffff) != PARAMETER_MINOR)
		return false;
	bpf_probe_read_kernel(letters, sizeof(letters), rwbs);
	if (letters[0] == 'N')
		return false;
	key->sector = sector;
	key->dev = dev;
	key->operation = letters[0];
	if (letters[0] == 'F')
		key->operation |= (u16)letters[1] << 8;
	return true;
}

static inline void set_owner(struct request_state *state)
{
	u64 id = bpf_get_current_pid_tgid();

	state->pid = id >> 32;
	state->tid = id;
	bpf_get_current_comm(state->comm, sizeof(state->comm));
	state->wanted = collectord_wanted();
}

static inline void count_crowded(s64 change)
{
	u32 zero = 0;
	s64 *count = crowded.lookup(&zero);

	if (count)
		__sync_fetch_and_add(count, change);
}

static inline bool is_crowded(void)
{
	u32 zero = 0;
	s64 *count = crowded.lookup(&zero);

	return count && *count;
}

/*
 * Give a request a lane. A lane taken by the same thread, or for long, belongs to a request whose
 * end was missed: a thread seldom repeats a request before it has the first.
 */
static inline void claim(struct request_key *key, struct request_state *state)
{
	u64 now = state->issued_ns ? state->issued_ns : state->inserted_ns;
	struct request_state *known;
	u64 since;

#pragma unroll
	for (int lane = 0; lane < LANES; lane++) {
		key->lane = lane;
		if (!requests.insert(key, state)) {
			if (lane)
				count_crowded(1);
			return;
		}
		known = requests.lookup(key);
		if (!known)
			continue;
		since = known->issued_ns ? known->issued_ns : known->inserted_ns;
		if (lane == LANES - 1 || known->tid == state->tid || since + STALE_NS < now) {
			requests.update(key, state);
			return;
		}
	}
}

/* Find the newest request that waits in a queue. Leaves its lane in the key. */
static inline struct request_state *find_waiting(struct request_key *key)
{
	struct request_state *best = NULL;
	struct request_state *known;
	u16 best_lane = 0;

#pragma unroll
	for (int lane = 0; lane < LANES; lane++) {
		if (lane == 1 && !is_crowded())
			break;
		key->lane = lane;
		known = requests.lookup(key);
		if (!known || known->issued_ns)
			continue;
		if (!best || known->inserted_ns > best->inserted_ns) {
			best = known;
			best_lane = lane;
		}
	}
	key->lane = best_lane;
	return best;
}

/* Find the oldest request issued by `now`. Leaves its lane in the key. */
static inline struct request_state *find_issued(struct request_key *key, u64 now)
{
	struct request_state *best = NULL;
	struct request_state *known;
	u16 best_lane = 0;

#pragma unroll
	for (int lane = 0; lane < LANES; lane++) {
		if (lane == 1 && !is_crowded())
			break;
		key->lane = lane;
		known = requests.lookup(key);
		if (!known || !known->issued_ns || known->issued_ns > now)
			continue;
		if (!best || known->issued_ns < best->issued_ns) {
			best = known;
			best_lane = lane;
		}
	}
	key->lane = best_lane;
	return best;
}

TRACEPOINT_PROBE(block, block_rq_insert)
{
	struct request_state state = {};
	struct request_state *known;
	struct request_key key = {};

	if (!fill_key(&key, args->dev, args->sector, args->rwbs))
		return 1;
	known = find_waiting(&key);
	if (known && known->requeued)
		return 1;
	state.inserted_ns = bpf_ktime_get_ns();
	state.sectors = args->nr_sector;
	set_owner(&state);
	claim(&key, &state);
	return 1;
}

TRACEPOINT_PROBE(block, block_rq_issue)
{
	struct request_state state = {};
	struct request_state *known;
	struct request_key key = {};

	if (!fill_key(&key, args->dev, args->sector, args->rwbs))
		return 1;
	known = find_waiting(&key);
	if (known) {
		known->sectors = args->nr_sector;
		known->requeued = 0;
		known->issued_ns = bpf_ktime_get_ns();
		return 1;
	}
	state.sectors = args->nr_sector;
	set_owner(&state);
	state.issued_ns = bpf_ktime_get_ns();
	claim(&key, &state);
	return 1;
}

/* The device could not take it now: it will be issued again. */
TRACEPOINT_PROBE(block, block_rq_requeue)
{
	struct request_state *known;
	struct request_key key = {};

	if (!fill_key(&key, args->dev, args->sector, args->rwbs))
		return 1;
	known = find_issued(&key, bpf_ktime_get_ns());
	if (known) {
		if (!known->inserted_ns)
			known->inserted_ns = known->issued_ns;
		known->requeued = 1;
		known->issued_ns = 0;
	}
	return 1;
}

/* Take a request off the map. False if another CPU took all matching ones first. */
static inline bool take(struct request_key *key, u64 now, struct request_state *taken)
{
	struct request_state *known;

#pragma unroll
	for (int tries = 0; tries < 2; tries++) {
		known = find_issued(key, now);
		if (!known)
			return false;
		*taken = *known;
		if (!requests.delete(key)) {
			if (key->lane)
				count_crowded(-1);
			return true;
		}
	}
	return false;
}

static inline bool is_wanted(struct io_event *event, bool wanted)
{
	if (OF_SOME && !wanted)
		return false;
	if (PARAMETER_FAILED && !event->error)
		return false;
	return event->latency_ns >= PARAMETER_MIN_LATENCY;
}

TRACEPOINT_PROBE(block, block_rq_complete)
{
	u64 now = bpf_ktime_get_ns();
	struct request_state state = {};
	struct request_key key = {};
	struct io_event event = {};
	u32 sectors = args->nr_sector;

	if (!fill_key(&key, args->dev, args->sector, args->rwbs))
		return 1;
	if (take(&key, now, &state)) {
		event.latency_ns = now - state.issued_ns;
		if (state.inserted_ns)
			event.queue_ns = state.issued_ns - state.inserted_ns;
		event.pid = state.pid;
		event.tid = state.tid;
		__builtin_memcpy(event.comm, state.comm, sizeof(event.comm));
		/* A device may complete it in parts: the rest continues where this one ends. */
		if (sectors && sectors < state.sectors) {
			key.sector += sectors;
			state.sectors -= sectors;
			claim(&key, &state);
		}
	} else if (!sectors) {
		/* A request with a flush completes once more for itself, after its parts. */
		return 1;
	}
	if (!collectord_open())
		return 1;
	event.sector = args->sector;
	event.dev = args->dev;
	event.bytes = sectors << 9;
	event.error = args->error;
	bpf_probe_read_kernel_str(event.rwbs, sizeof(event.rwbs), args->rwbs);
	if (!is_wanted(&event, state.wanted))
		return 1;
	if (!event.latency_ns)
		unmatched.increment(0);
	collectord_submit(args, &event);
	return 1;
}
