/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "ring.h"

/*
 * How far a ring was read, and how many samples came out of it: in memory that outlives this
 * process, if another one keeps the ring. Its shard writes it before it gives the bytes back to
 * the kernel, so a successor that begins here repeats no record and misses none. The position of
 * an overwritable ring counts down: what lies above it is in a window, or was overwritten. An AUX
 * area has, in place of the samples, the end of the last AUX record that was read.
 */
struct ring_note {
	_Atomic uint64_t turn; /* at[turn & 1] is valid */
	struct {
		uint64_t position, samples;
	} at[2];
	uint64_t place[2]; /* behind the samples in staging, see chunk__place() */
	/* Not the shard's, as it was counted last: samples of an overwritable ring that were
	 * overwritten, bytes of an AUX area that were truncated. */
	uint64_t counted;
};

_Static_assert(sizeof(struct ring_note) == 64, "other processes read it");

static inline void ring_note__write(struct ring_note *note, uint64_t position, uint64_t samples,
				    uint64_t place)
{
	const uint64_t turn = load_relaxed(&note->turn) + 1;

	note->at[turn & 1].position = position;
	note->at[turn & 1].samples = samples;
	note->place[turn & 1] = place;
	/* Release: a kill leaves the old pair or the new one. The partner is the acquire in
	 * ring_note__read(). */
	store_release(&note->turn, turn);
}

static inline void ring_note__read(const struct ring_note *note, uint64_t *position,
				   uint64_t *samples)
{
	const uint64_t turn = load_acquire(&note->turn);

	*position = note->at[turn & 1].position;
	*samples = note->at[turn & 1].samples;
}

/* The ring's cache lines were written by another core, and walking them in place is a chain of
 * dependent misses. A straight copy streams them in; the walk, and the chunk's checksum, then find
 * this piece in the nearest caches. */
#define PIECE_BYTES 32768u

/* A mapped perf ring. The shard writes its counters. */
struct perf_ring {
	struct ring ring;
	struct ring_map *map;
	struct walk_layout layout;
	struct walk_ids ids;	  /* in the ring's own memory */
	pthread_mutex_t ids_lock; /* of them, which a walk reads and perf_ring__set_ids() replaces */
	struct ring_note *note;	  /* `own`, unless another process keeps the ring */
	struct ring_note own;
	uint64_t taken; /* samples that earlier processes took */
	bool names;	/* it carries the sideband of its stream */
	/* The names of a recorder's tasks are needed as long as their samples are in its rings, and
	 * are in no file. So a ring that another process keeps holds its last records on, up to a
	 * half of it, for a successor: from `kept[0]`, the beginning of a record like `kept[1]`. It
	 * reads up to `known` what an earlier process has read. */
	bool keeps;
	uint64_t kept[2], known;

	counter_t lost_records, lost_samples;
	counter_t neutralised, relabelled;
	counter_t throttles;
	counter_t overwritten_samples;
};

struct perf_ring_options {
	struct ring_map *map;
	int wakeup_fd;
	struct walk_layout layout;
	struct walk_ids ids; /* ids of the ring's events, in any order; if empty, records keep
			      * theirs. `renamed` is found out. */
	bool sideband;
	struct ring_note *note; /* of a ring that another process keeps, or NULL */
};

/* The fd, the map and the note stay the caller's. Returns -ENOMEM on failure. */
int perf_ring__new(const struct perf_ring_options *options, struct ring **ring);
/* Like perf_ring__new(), in zeroed memory of the caller. */
int perf_ring__init(struct perf_ring *perf, const struct perf_ring_options *options);

/*
 * Replace the ids of a streamed ring, from any thread. To be called before the first record with a
 * new id can be in the ring, and with an old id for as long as a record with it may be unread.
 * Returns -EINVAL for a ring of another kind or without ids, -ENOMEM.
 */
int perf_ring__set_ids(struct ring *ring, const struct walk_ids *ids);

extern const struct ring_ops perf_ring__ops;

/* Returns `ring` as a perf ring if it is one, or its kind begins with one; else NULL. */
static inline struct perf_ring *perf_ring__of(const struct ring *ring)
{
	return ring->ops->records ? container_of(ring, struct perf_ring, ring) : NULL;
}

/* Drop the oldest whole records until at most `keep` bytes up to the head of this pass are
 * left: they are counted as overwritten, and what they report is noted. */
void perf_ring__give_up(struct perf_ring *perf, uint64_t keep);
/* Walk, count and add `bytes` of whole records that lie behind the end of `chunk`. */
void perf_ring__put(struct perf_ring *perf, struct chunk *chunk, size_t bytes);
/* The common operations of kinds that begin with a perf ring. */
int perf_ring__join(struct ring *ring, struct stream *stream);
void perf_ring__begin(struct ring *ring);
void perf_ring__free(struct ring *ring);

struct bpf_ring_options {
	struct perf_ring_options perf; /* its layout is that of the resulting samples */
	uint64_t id;
	uint32_t fields_bytes; /* a multiple of 8 */
};

/*
 * Each record becomes a PERF_RECORD_SAMPLE: `id`, the record's first bytes, which the sample has
 * between its id and its raw data, and the rest as raw data. They are then walked, counted and
 * written like those of a perf ring. Records that the program discarded are skipped.
 *
 * The program decides which records wake the reader (BPF_RB_FORCE_WAKEUP, else BPF_RB_NO_WAKEUP),
 * at its watermark. By itself, the kernel wakes for a record at the consumer's position, and
 * misses one that was written before that position became visible. An fd with unread records is
 * always ready, so each wake-up is reported once (EPOLLET).
 */
struct bpf_ring {
	struct perf_ring perf;
	struct bpf_ring_options options;
};

int bpf_ring__new(const struct bpf_ring_options *options, struct ring **ring);

RING_KIND(bpf_ring, perf.ring)

/* The history of a ring's writes has so many steps; half as many cover a full ring. */
#define WINDOW_STEPS 128u

/* Bytes behind the beginning of a step were written after `since_ns`; it began about `begun_ns`. */
struct window_step {
	uint64_t since_ns, begun_ns;
};

/*
 * An overwritable ring, and the window that a snapshot took out of it.
 *
 * The kernel writes such a ring backwards and never waits: the newest record begins at data_head,
 * and ever older ones follow until data_bytes are full. The very last one is cut by later writes
 * (include/uapi/linux/perf_event.h, attr.write_backward).
 *
 *   head             last                                head + data_bytes
 *     | new records   | were in the last window already    | cut |
 *     newest ──────────────────────────────────────────► oldest
 *
 * A window is copied out in one go into memory reserved with the ring: the ring is stopped
 * meanwhile, and must not wait for chunks, and so for a disk. From the copy it goes into chunks as
 * these come free, oldest record first, so that a segment is in time order.
 *
 * The unread bytes of the ring, head - position, are those at the start of the copy that are not
 * delivered yet.
 */
struct window {
	struct perf_ring perf;
	uint8_t *copy;	   /* has pages only while in use */
	size_t copy_bytes; /* data_bytes of the map */
	uint64_t last;	   /* head of the last window */
	bool wanted;	   /* another one is to be taken when the last one is delivered */
	/* Where the pieces of the unread bytes begin, each delivered as a whole, the last one first:
	 * of PIECE_BYTES at most, or one record. */
	size_t *pieces;
	uint32_t piece_count;
	uint64_t seen, seen_ns; /* bytes written to the ring up to the last check, and its time */
	struct window_step steps[WINDOW_STEPS];

	counter_t windows;
	counter_t taken;		    /* samples that were in a window for the first time */
	counter_t repeated, repeated_bytes; /* samples that the last window had too */
	counter_t overwritten_bytes;	    /* bytes of records in no window */
	counter_t held_ns;		    /* approximate time span in the ring */
};

/* Make a ring whose map is still empty, unless another process keeps it, and reserve the memory for
 * its windows. -ENOMEM. */
int window__new(const struct perf_ring_options *options, struct ring **ring);
/* Prepare the memory that its next window is copied to, so that the copy causes no faults. Any
 * thread may call it, for a ring of any kind. */
void window__warm(const struct ring *ring);

RING_KIND(window, perf.ring)
