/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <linux/types.h>

#include "chunk.h"

struct perf_event_mmap_page;

/* A mapped ring. `data_bytes` is a power of two of pages, or init returns -EINVAL; else -errno.
 * Positions are free running; position & (data_bytes - 1) is the index. All bytes before the head
 * are readable; those before the published tail belong to the kernel again. */
struct ring_map {
	const uint8_t *data;
	uint64_t data_bytes;
	__u64 *head, *tail; /* in shared memory; the kernel writes the head, and we the tail */
	struct perf_event_mmap_page *page; /* of a perf ring */
	bool overwrite; /* mapped read-only: the oldest bytes are overwritten, there is no tail */
	struct map_part {
		void *at;
		size_t bytes;
	} parts[2]; /* the mappings to undo */
};

/*
 * Map a perf ring, and the AUX area that may be behind it:
 *
 *   +--------------+-------------------------------+--------------------------------+
 *   | control page | data, data_bytes              | AUX, data_bytes                |
 *   +--------------+-------------------------------+--------------------------------+
 *                                                  ^ aux_offset
 *
 * The control page has the heads and tails of both. A record may wrap, its 8-byte header never
 * does. Layout and protocol: include/uapi/linux/perf_event.h, struct perf_event_mmap_page.
 *
 * If the area is mapped for writing, the kernel stops at the tail. If it is mapped to `overwrite`,
 * as a snapshot, the meaning of the head depends on the driver: see struct aux_window. The caller
 * keeps `ring`, mapped from `fd`, as long as the area behind it.
 */
int ring_map__init(struct ring_map *map, int fd, uint64_t data_bytes, bool overwrite);
int ring_map__init_aux(struct ring_map *map, struct ring_map *ring, int fd, uint64_t data_bytes,
		       bool overwrite);

/*
 * Map a BPF ring buffer (BPF_MAP_TYPE_RINGBUF), one for all CPUs.
 *
 *   +---------------+---------------+--------------------+--------------------+
 *   | consumer page | producer page | data, data_bytes   | the same once more |
 *   | ours to write | read only     | read only, so that no record wraps      |
 *   +---------------+---------------+--------------------+--------------------+
 *
 * A record is a u32 length with BUSY and DISCARD in its highest bits, a u32 of the kernel's, and
 * its data; the next one is at a multiple of 8. A BUSY record is reserved and not committed:
 * reading stops before it. (kernel/bpf/ringbuf.c, include/uapi/linux/bpf.h: BPF_RINGBUF_*)
 */
int ring_map__init_bpf(struct ring_map *map, int fd, uint64_t data_bytes);

void ring_map__deinit(struct ring_map *map);
uint64_t ring_map__head(const struct ring_map *map);
uint64_t ring_map__tail(const struct ring_map *map);
/* Copy `bytes` (<= data_bytes) from `position` on, across the wrap. */
void ring_map__copy(const struct ring_map *map, uint64_t position, void *to, size_t bytes);
void ring_map__publish_tail(const struct ring_map *map, uint64_t tail);
/* Write whole records behind the head as the kernel would, as the only writer of a ring in our
 * own memory. -ENOSPC: there is no room for all of them, and nothing was written. */
int ring_map__feed(struct ring_map *map, const uint8_t *records, size_t bytes);

/* A build for tests loses a record here, once, which the ledgers must miss. */
#ifdef COLLECTORD_MUTATION
#include "mutation.h"
#define MUTATE(statement) statement
#else
#define MUTATE(statement)
#endif

/* A ring with invalid contents continues behind them: the bytes in between are skipped and counted.
 * After so many faults within this time its contents are not trusted, and it is read no more. */
#define RING_FAULTS_MAX 8u
#define RING_FAULTS_NS 10000000000u

#define RING_FILL_BUCKETS 11u /* <= 0.1 .. <= 0.9, <= 0.95, <= 1.0 */

enum ring_take {
	RING_EMPTY,	 /* read up to the head of this pass */
	RING_CHUNK_FULL, /* the next record needs another chunk */
	RING_FAULTY,	 /* the following bytes were invalid and are skipped */
	RING_TICKET,	 /* data are outside of chunks: its ticket goes to the writer */
	RING_MORE,	 /* more data, and the chunk may take it */
};

struct ring;
struct sideband;
struct stream;
struct stream_ops;

/* Commands to the shard of a ring, which carries them out at the start of its next pass. */
enum command {
	COMMAND_ADD,
	COMMAND_HOLD,
	COMMAND_LET_GO,
	COMMAND_LAST,
	COMMAND_REMOVE,
};
#define COMMANDS (COMMAND_REMOVE + 1)

/* A command, posted or done. Each ring has one letter of each kind, so posting never allocates. */
struct letter {
	struct letter *next;
	struct ring *ring;
	uint64_t number; /* in the order of posting; 0: it was never posted */
	enum command command;
};

/* The struct of a kind whose ring is `member`. */
#define container_of(pointer, type, member) \
	((type *)((uintptr_t)(pointer) - offsetof(type, member)))

/* The operations of a kind of ring. A kind is a struct that embeds a struct ring, and one such
 * table. The shard makes the calls, except for `join` and `free`. Optional operations may
 * be NULL. */
struct ring_ops {
	uint32_t poll; /* epoll events that wake for it, 0: none; with EPOLLONESHOT once each
		        * time that it was drained */
	bool copied;   /* passes read an earlier copy: a hold or a fault does not stop them */
	bool payload;  /* its samples are bytes, not events */
	bool records;  /* perf records: its struct begins with a struct perf_ring */
	bool waits;    /* passes leave data that may continue, until the last write was made */

	const struct stream_ops *stream; /* the kind of stream that takes it */
	/* Optional: join the ring to such a stream. -EINVAL: it does not take this ring. */
	int (*join)(struct ring *ring, struct stream *stream);

	/* Begin a pass: load the head. */
	void (*begin)(struct ring *ring);
	/* Optional: whether this pass has anything to read. Without it only a read tells. */
	bool (*is_unread)(const struct ring *ring);
	/* Put unread data into `chunk`, up to the head of this pass. */
	enum ring_take (*take)(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes);
	/* For kinds that return RING_TICKET: returns the ticket. */
	struct item *(*ticket)(struct ring *ring);

	/* Optional: note that its fd woke with these events. */
	void (*wake)(struct ring *ring, uint32_t events);

	/* The next four are only for a ring behind another one, its front. */
	/* Note these records of the front, which were walked. */
	void (*learn)(struct ring *ring, const uint8_t *records, size_t bytes);
	/* Note that a pass of `generation` (0: of none) read the front to its head, or past its
	 * goal. */
	void (*follow)(struct ring *ring, uint64_t generation);
	/* Note that this ring was read too. */
	void (*resume)(struct ring *ring, bool woken, uint64_t generation);
	/* Make room in the front, which is held. */
	void (*recycle)(struct ring *ring);

	/* Optional: have passes leave it alone, or read it again. */
	void (*hold)(struct ring *ring, bool held);
	/* Optional: note that no more passes come. If it was not `drained`, unread data are
	 * lost. */
	void (*leave)(struct ring *ring, bool drained);
	void (*free)(struct ring *ring);
};

/* One ring as its shard drains it. Counters: the writer thread writes `stored`, `lost_*` and
 * `segment_*`, both threads write `in_flight`, the shard's thread writes all others. */
struct ring {
	const struct ring_ops *ops;
	struct lane *lane;
	struct ring *next;    /* next ring of the shard, without those behind others */
	struct ring *partner; /* `behind` as requested; for the thread that posts letters */
	struct letter letters[COMMANDS];
	uint64_t asked;		   /* number of its last letter; for the thread that posts them */
	uint64_t leave_by_ns;	   /* it leaves when empty, by then at the latest; 0: it stays */
	struct sideband *sideband; /* NULL: a ring of counted events */
	struct ring *front;	   /* the ring whose records describe this one, or NULL */
	struct ring *behind;	   /* the reverse: passes read it after this one */
	uint64_t position;	   /* first unread record; the tail lags behind it in a pass */
	uint64_t head;		   /* as loaded at the start of the pass */
	uint64_t goal;		   /* head at the start of the generation's first pass */
	bool owes;		   /* it has not reached that goal: the generation waits for it */
	bool first; /* this pass is the generation's first: the head loaded is its goal */
	bool swept; /* this pass also reads data below the watermark */
	bool never_held;
	bool last; /* no more is written into it: passes wait for nothing */
	uint32_t id;
	int wakeup_fd;
	bool woken;
	bool armed;		/* a wake-up is pending */
	bool erred;		/* its last wake-up reported an error or hang-up */
	_Atomic bool held;	/* passes leave it alone; set before it is added, or by the shard */
	_Atomic bool left;	/* removed from its shard; its data may still be in flight */
	_Atomic bool forgotten; /* only the core refers to it */
	_Atomic uint32_t uses;	/* of it as the source of what is in flight, be it no sample */
	_Atomic bool hung_up;
	_Atomic bool hung_up_told;
	/* Reasons of enum fault. */
	_Atomic uint32_t fault;	     /* reason of its quarantine, 0: it is read */
	_Atomic uint32_t last_fault; /* reason of the last fault */
	_Atomic bool fault_untold;
	uint64_t faults_since_ns; /* start of the period in which faults are counted, */
	uint32_t faults_recent;	  /* and their number since then */

	counter_t samples, records, bytes;
	counter_t wakeups_watermark, wakeups_timer;
	counter_t starved;
	counter_t used_bytes, high_watermark_bytes;
	counter_t last_sample_ns;
	counter_t faults, quarantined_bytes; /* faults, and bytes skipped because of them */
	counter_t fill[RING_FILL_BUCKETS];
	counter_t stored, lost_disk_full, lost_dropped;
	counter_t segment_samples, segment_bytes;
	counter_t abandoned;  /* samples left at its removal for lack of chunks; lost */
	counter_t horizon_ns; /* all that it holds for a snapshot is younger than this;
			       * UINT64_MAX: it holds nothing */
	counter_t left_ns;    /* time of the first record that a predecessor left unread in it, 0:
			    * unknown; UINT64_MAX: there is none, or passes read it meanwhile */
	_Atomic uint64_t in_flight;
};

/* Whether passes leave it alone. */
static inline bool ring__is_held(const struct ring *ring)
{
	return !ring->ops->copied && (ring->held || (ring->front != NULL && ring->front->held));
}

/* Note that a span or a ticket refers to it; and that it does so no more. */
static inline void ring__use(struct ring *ring)
{
	atomic_fetch_add_explicit(&ring->uses, 1, memory_order_relaxed);
}

static inline void ring__drop(struct ring *ring)
{
	/* Release; the partner is the acquire in ring__is_over(). */
	atomic_fetch_sub_explicit(&ring->uses, 1, memory_order_release);
}

/* Whether its contents are trusted: it is not in quarantine. */
static inline bool ring__is_sound(const struct ring *ring)
{
	return ring->ops->copied || load_relaxed(&ring->fault) == 0;
}

/* Whether the command means anything to the ring or the ring behind it, and both may be held. For
 * the thread that posts letters. */
bool ring__obeys(const struct ring *ring, enum command command);
/* Carry out COMMAND_LAST, for the ring behind it too. */
void ring__last(struct ring *ring);
void ring__hold(struct ring *ring, bool held);

/* Whether nobody refers to a ring that has left its shard, nor does another ring. */
bool ring__is_over(const struct ring *ring);
/* The `is_unread` of rings whose head gives the number of unread bytes. */
bool ring__is_unread(const struct ring *ring);
/* Initialise a zeroed ring as one of a kind. */
void ring__init(struct ring *ring, const struct ring_ops *ops, int wakeup_fd);
/* Count that a pass found `used` bytes of `capacity`. */
void ring__count_fill(struct ring *ring, uint64_t used, uint64_t capacity);
/* Count data taken into a chunk: in flight until stored or lost. */
void ring__count(struct ring *ring, uint64_t samples, uint64_t records, uint64_t bytes);
/* Count the rest of a ring for which no chunk came free. */
void ring__count_abandoned(struct ring *ring, uint64_t samples, uint64_t records, uint64_t bytes);
/* Whether a fault, or a hang-up, is not reported yet: now it is. */
bool ring__tells_fault(struct ring *ring);
bool ring__tells_hang_up(struct ring *ring);
/* Count a fault, for which `bytes` are skipped. */
void ring__refuse(struct ring *ring, uint32_t reason, uint64_t bytes);
/* Continue a ring of `capacity` bytes at the head of this pass after a fault. */
void ring__skip(struct ring *ring, enum fault reason, uint64_t capacity);

/* Begin the pass with this head. False: the head is invalid, as the unread bytes exceed the
 * capacity or are no multiple of `step`, and the ring continues there. */
bool ring__load(struct ring *ring, uint64_t head, uint64_t capacity, uint32_t step);

/* Define for a kind with its ring in `member`: its operations, and a cast that gives NULL for
 * others. */
#define RING_KIND(kind, member)                                                                    \
	extern const struct ring_ops kind##__ops;                                                  \
	static inline struct kind *kind##__of(const struct ring *ring)                             \
	{                                                                                          \
		return ring->ops == &kind##__ops ? container_of(ring, struct kind, member) : NULL; \
	}
