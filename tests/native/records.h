/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_RECORDS_H
#define COLLECTORD_TEST_RECORDS_H

#include <stdint.h>

#include "chunk.h"
#include "walk.h"

/*
 * Records as the kernel would write them, in the layout of these tests: a sample is
 * {header, u64 serial, u64 time, filler}, all else ends in {u64 time}.
 */
extern const struct walk_layout records__layout, records__context_layout;

#define SAMPLE_MIN_BYTES 24u

/* Each writes at `to` and returns the record's size. `serial` also makes the filler. */
uint16_t record__sample(uint8_t *to, uint16_t size, uint64_t serial, uint64_t time_ns);
uint16_t record__plain(uint8_t *to, uint32_t type, uint16_t size);
uint16_t record__lost(uint8_t *to, uint64_t lost, uint64_t time_ns);
uint16_t record__lost_samples(uint8_t *to, uint64_t lost, uint64_t time_ns);
uint16_t record__comm(uint8_t *to, uint32_t pid, uint32_t tid, const char *name, int exec,
		      uint64_t time_ns);
uint16_t record__mmap2(uint8_t *to, uint32_t pid, uint64_t start, uint64_t length, const char *file,
		       uint64_t time_ns);
uint16_t record__fork(uint8_t *to, uint32_t pid, uint32_t ppid, uint32_t tid, uint32_t ptid,
		      uint64_t time_ns);
uint16_t record__exit(uint8_t *to, uint32_t pid, uint32_t tid, uint64_t time_ns);
uint16_t record__ksymbol(uint8_t *to, uint64_t start, uint16_t flags, uint64_t time_ns);
uint16_t record__cgroup(uint8_t *to, uint64_t id, const char *path, uint64_t time_ns);
uint16_t record__bpf_event(uint8_t *to, uint16_t type, uint32_t id, uint64_t time_ns);
/* A record whose body begins with `pid` and that ends in {u64 time, u32 cpu, u32, u64 id}, as in
 * records__context_layout. */
uint16_t record__context(uint8_t *to, uint32_t type, uint16_t misc, uint32_t pid, uint64_t id,
			 uint32_t cpu, uint64_t time_ns);

/* An empty chunk with this memory. Nobody asks it for its checksum. */
void records__chunk(struct chunk *chunk, uint8_t *data);

/* Ends the test if the sample's filler is not what record__sample() wrote; returns its serial. */
uint64_t record__check_sample(const uint8_t *record);
uint64_t record__sample_time(const uint8_t *record);

#endif
