/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "chunk.h"
#include "counter.h"

/*
 * A ring whose contents are refused goes on behind them: what came in between is passed over, and
 * counted. So often within such a time, and it is left alone: nobody believes what it holds.
 */
#define RING_FAULTS_MAX 8u
#define RING_FAULTS_NS 10000000000u

#define RING_FILL_BUCKETS 11u /* <= 0.1 .. <= 0.9, <= 0.95, <= 1.0 */

enum ring_take {
	RING_EMPTY,	 /* read up to the head of this pass */
	RING_CHUNK_FULL, /* the next record needs another chunk */
	RING_FAULTY,	 /* what followed was refused, and is passed over */
	RING_TICKET,	 /* what was taken is in no chunk: its ticket goes to the writer */
	RING_MORE,	 /* there is more, and the chunk may take it */
};

struct ring;
struct sideband;
struct stream;

/* What the shard of a ring is told: it does so at the start of its next pass. */
enum command {
	COMMAND_ADD,
	COMMAND_HOLD,
	COMMAND_LET_GO,
	COMMAND_LAST,
	COMMAND_REMOVE,
};
#define COMMANDS (COMMAND_REMOVE + 1)

/* A command on its way, or done. Each ring has one letter of a kind, so that none is ever missing. */
struct letter {
	struct letter *next;
	struct ring *ring;
	uint64_t number; /* in the order in which the shard got them; 0: it was never posted */
	enum command command;
};

/* The struct of a kind that has its ring in `member`. */
#define container_of(pointer, type, member) \
	((type *)((uintptr_t)(pointer) - offsetof(type, member)))

/*
 * What a kind of ring does. A kind is a struct that has a struct ring in it, and one such table. Calls
 * are made by the shard, but for `join`, `can_hold`, `warm` and `free`. Those that are said to be
 * optional may be NULL.
 */
struct ring_ops {
	uint32_t poll; /* the epoll events that wake for it, 0: none do; with EPOLLONESHOT once each time
			* that all of it was taken */
	bool copied;   /* passes take what it copied before: neither a hold nor a fault ends that */
	bool payload;  /* its samples are bytes, no events */
	bool records;  /* of perf: its struct begins with a struct perf_ring */

	/* It becomes one of `stream`. -EINVAL: that is none for it. */
	int (*join)(struct ring *ring, struct stream *stream);

	/* A pass begins, `first`: the first one of a generation, whose goal is the head that is loaded. */
	void (*begin)(struct ring *ring, bool first);
	/* Is there anything for this pass? */
	bool (*is_unread)(const struct ring *ring);
	/* Put what is unread into `chunk`, up to the head of this pass. */
	enum ring_take (*take)(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes);
	/* Of one that takes RING_TICKET: the ticket. */
	struct item *(*ticket)(struct ring *ring);

	/* Optional: its fd woke, with these events. */
	void (*wake)(struct ring *ring, uint32_t events);

	/*
	 * Only of a ring behind another one, its front.
	 */
	/* These records of the front were walked. */
	void (*learn)(struct ring *ring, const uint8_t *records, size_t bytes);
	/* The front was read to its head, or past its goal, by a pass of `generation`, 0: of none. */
	void (*follow)(struct ring *ring, uint64_t generation);
	/* And then this one was. */
	void (*resume)(struct ring *ring, bool woken, uint64_t generation);
	/* The front is held: make room in it. */
	void (*recycle)(struct ring *ring);

	/* Optional: may it be held? Without it any ring may. */
	bool (*can_hold)(const struct ring *ring);
	/* Optional: passes are to leave it alone, or no more. */
	void (*hold)(struct ring *ring, bool held);
	/* Optional: nothing is written into it any more, and what it waits for does not come. */
	void (*last)(struct ring *ring);
	/* Optional: no pass comes any more. What is unread if it was not `drained` is lost. */
	void (*leave)(struct ring *ring, bool drained);
	/* Optional: have memory ready for what the end of a hold copies. */
	void (*warm)(const struct ring *ring);
	void (*free)(struct ring *ring);
};

/* One ring as its shard drains it. Counters: `stored`, `lost_*` and `segment_*` are written by
 * the writer thread, `in_flight` by both, all others by the shard's thread. */
struct ring {
	const struct ring_ops *ops;
	struct lane *lane;
	struct ring *next;	   /* of the shard's, without those behind others */
	struct ring *partner;	   /* `behind` as soon as that is asked for; who posts letters reads it */
	struct letter letters[COMMANDS];
	uint64_t asked;		   /* the number of its last letter; who posts them reads it */
	uint64_t leave_by_ns;	   /* it is to leave when it is empty, and by then at the latest; 0: no */
	struct sideband *sideband; /* NULL: a ring of counted events */
	struct ring *front;	   /* the ring whose records tell of this one, or NULL */
	struct ring *behind;	   /* and that ring's: passes take it when they have read this one */
	uint64_t position; /* of the first unread record; the tail lags behind it in a pass */
	uint64_t head;	   /* as loaded at the start of the pass */
	uint64_t goal;	   /* and at the start of the generation's first one */
	bool owes;	   /* it has not come to that goal, and the generation waits for it */
	bool swept;	   /* this pass takes what is below the watermark too */
	uint32_t id;
	int wakeup_fd;
	bool woken;
	bool armed; /* a wake-up is to come */
	bool erred; /* with the last one its fd told of an error, or of its end */
	_Atomic bool held; /* passes leave it alone; the shard sets it */
	_Atomic bool left; /* removed from its shard; what it gave may be in flight still */
	_Atomic bool hung_up;
	_Atomic bool hung_up_told;
	/* Reasons: enum fault. */
	_Atomic uint32_t fault;	     /* of its quarantine, 0: it is read */
	_Atomic uint32_t last_fault; /* of what was passed over last */
	_Atomic bool fault_untold;
	uint64_t faults_since_ns; /* faults are counted together from then on, */
	uint32_t faults_recent;	  /* that many until now */

	counter_t samples, records, bytes;
	counter_t wakeups_watermark, wakeups_timer;
	counter_t starved;
	counter_t used_bytes, high_watermark_bytes;
	counter_t last_sample_ns;
	counter_t faults, quarantined_bytes; /* passed over since something in them was refused */
	counter_t fill[RING_FILL_BUCKETS];
	counter_t stored, lost_disk_full, lost_dropped;
	counter_t segment_samples, segment_bytes;
	counter_t abandoned; /* samples that no chunk came free for when it was removed; lost */
	counter_t horizon_ns; /* all that it holds for a snapshot was written later than this;
			       * UINT64_MAX: it holds nothing */
	_Atomic uint64_t in_flight;
};

static inline uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Passes leave it alone. */
static inline bool ring__is_held(const struct ring *ring)
{
	return !ring->ops->copied &&
	       (ring->held || (ring->front != NULL && ring->front->held));
}

/* What it holds is believed: it is in no quarantine. */
static inline bool ring__is_sound(const struct ring *ring)
{
	return ring->ops->copied || load_relaxed(&ring->fault) == 0;
}

/* Is it something to it, or to the ring behind it, that nothing is written into it any more? Likewise,
 * may it be held? Of who posts letters. */
bool ring__has_last(const struct ring *ring);
bool ring__can_hold(const struct ring *ring);
/* Do what such a letter says, with the ring behind it too. */
void ring__last(struct ring *ring);
void ring__hold(struct ring *ring, bool held);

/* The operation of rings whose head tells how much is unread. */
bool ring__is_unread(const struct ring *ring);

/* A ring of zeros becomes one of a kind. */
void ring__init(struct ring *ring, const struct ring_ops *ops, int wakeup_fd, bool held);

/* A pass found `used` bytes of `capacity`. */
void ring__count_fill(struct ring *ring, uint64_t used, uint64_t capacity);

/* Count what was taken into a chunk: in flight until it is stored, or lost. */
void ring__count(struct ring *ring, uint64_t samples, uint64_t records, uint64_t bytes);

/* No chunk came free for what is left of it. */
void ring__count_abandoned(struct ring *ring, uint64_t samples, uint64_t records, uint64_t bytes);

/* Its contents were refused, and `bytes` of them are passed over. */
void ring__refuse(struct ring *ring, uint32_t reason, uint64_t bytes);

/* Of a ring of `capacity` bytes: go on at the head of this pass. */
void ring__skip(struct ring *ring, enum fault reason, uint64_t capacity);

/* The pass begins with this head. False: it cannot be, as the unread bytes are more than fit or no
 * multiple of `step`, and the ring goes on there. */
bool ring__load(struct ring *ring, uint64_t head, uint64_t capacity, uint32_t step);

/* Of a kind, which has its ring in `member`: its operations, and what is one of it, or NULL. */
#define RING_KIND(kind, member)                                                          \
	extern const struct ring_ops kind##__ops;                                        \
	static inline struct kind *kind##__of(const struct ring *ring)                   \
	{                                                                                \
		return ring->ops == &kind##__ops ? container_of(ring, struct kind, member) \
						 : NULL;                                 \
	}
