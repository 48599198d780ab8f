/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_FAKE_SLOTS_H
#define COLLECTORD_TEST_FAKE_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "slot_ring.h"

/* The arrays of a BPF program in memory of our own, and the program's side of them, as
 * collectord_keep() of collectord.h writes them. */
struct fake_slots {
	struct slot_map map;
	struct slot_head *heads;
	struct slot *slots;
};

void fake_slots__init(struct fake_slots *fake, uint32_t cpus, uint32_t slots_each);
void fake_slots__deinit(struct fake_slots *fake);

/* A record that has its slots and is not written yet. */
struct fake_record {
	struct fake_slots *fake;
	uint32_t cpu, kind, bytes;
	uint64_t at, number;
};

/* Take the slots of a record; false: another one is just taking some, and it is missed. */
bool fake_slots__reserve(struct fake_slots *fake, uint32_t cpu, uint32_t kind, uint32_t bytes,
			 struct fake_record *record);
/* Take the mark off its n-th slot, and write and mark that slot. */
void fake_record__open(const struct fake_record *record, uint32_t part);
void fake_record__fill(const struct fake_record *record, uint32_t part, uint64_t time_ns,
		       const uint8_t *data);
void fake_record__write(const struct fake_record *record, uint64_t time_ns, const uint8_t *data);
uint32_t fake_record__parts(const struct fake_record *record);

#endif
