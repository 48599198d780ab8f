/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake_bpf.h"

#include <linux/bpf.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

void fake_bpf__init(struct fake_bpf *bpf, uint32_t pages)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), data = pages * page;
	const int fd = memfd_create("fake_bpf", MFD_CLOEXEC);
	uint8_t *base;

	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, (off_t)(2 * page + data)), 0);
	memset(bpf, 0, sizeof(*bpf));
	bpf->memory_bytes = 4 * page + 2 * data;
	bpf->memory = mmap(NULL, bpf->memory_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(bpf->memory != MAP_FAILED);
	base = bpf->memory + page;
	CHECK(mmap(base, 2 * page + data, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
	      base);
	CHECK(mmap(base + 2 * page + data, data, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
		   (off_t)(2 * page)) == base + 2 * page + data);
	close(fd);
	bpf->map = (struct ring_map){
		.data = base + 2 * page,
		.data_bytes = data,
		.head = (void *)(base + page),
		.tail = (void *)base,
	};
}

void fake_bpf__deinit(struct fake_bpf *bpf)
{
	munmap(bpf->memory, bpf->memory_bytes);
}

void fake_bpf__set_head(struct fake_bpf *bpf, uint64_t head)
{
	bpf->head = head;
	/* Release; the partner is the acquire in ring_map__head(). */
	__atomic_store_n(bpf->map.head, head, __ATOMIC_RELEASE);
}

void fake_bpf__start_at(struct fake_bpf *bpf, uint64_t position)
{
	__atomic_store_n(bpf->map.tail, position, __ATOMIC_SEQ_CST);
	fake_bpf__set_head(bpf, position);
}

uint8_t *fake_bpf__reserve(struct fake_bpf *bpf, uint32_t bytes)
{
	/* Acquire; the partner is the release in ring_map__publish_tail(). */
	const uint64_t tail = __atomic_load_n(bpf->map.tail, __ATOMIC_ACQUIRE);
	const uint64_t whole = ((uint64_t)bytes + BPF_RINGBUF_HDR_SZ + 7) & ~UINT64_C(7);
	uint8_t *const at =
		(uint8_t *)(uintptr_t)bpf->map.data + (bpf->head & (bpf->map.data_bytes - 1));

	if (bpf->head + whole - tail > bpf->map.data_bytes - 1)
		return NULL;
	__atomic_store_n((uint32_t *)(void *)at, bytes | BPF_RINGBUF_BUSY_BIT, __ATOMIC_RELAXED);
	fake_bpf__set_head(bpf, bpf->head + whole);
	return at + BPF_RINGBUF_HDR_SZ;
}

void fake_bpf__commit(uint8_t *data, bool discard)
{
	uint32_t *const length = (uint32_t *)(void *)(data - BPF_RINGBUF_HDR_SZ);
	const uint32_t bytes = *length & ~BPF_RINGBUF_BUSY_BIT;

	/* The partner is the acquire in bpf_ring__look(). */
	__atomic_exchange_n(length, discard ? bytes | BPF_RINGBUF_DISCARD_BIT : bytes,
			    __ATOMIC_SEQ_CST);
}
