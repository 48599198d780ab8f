/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_slots.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

void fake_slots__init(struct fake_slots *fake, uint32_t cpus, uint32_t slots_each)
{
	fake->heads = calloc(cpus, sizeof(*fake->heads));
	fake->slots = calloc((size_t)cpus * slots_each, sizeof(*fake->slots));
	CHECK(fake->heads != NULL && fake->slots != NULL);
	fake->map = (struct slot_map){
		.heads = fake->heads,
		.slots = fake->slots,
		.cpus = cpus,
		.slots_each = slots_each,
	};
}

void fake_slots__deinit(struct fake_slots *fake)
{
	free(fake->heads);
	free(fake->slots);
}

uint32_t fake_record__parts(const struct fake_record *record)
{
	uint32_t parts = 1;

	for (uint32_t room = SLOT_FIRST_BYTES; room < record->bytes; room += SLOT_MORE_BYTES)
		parts++;
	return parts;
}

bool fake_slots__reserve(struct fake_slots *fake, uint32_t cpu, uint32_t kind, uint32_t bytes,
			 struct fake_record *record)
{
	struct slot_head *const head = &fake->heads[cpu];

	if (head->busy != 0) {
		__atomic_fetch_add(&head->missed, 1, __ATOMIC_RELAXED);
		return false;
	}
	*record = (struct fake_record){fake, cpu, kind, bytes, head->slots, head->records + 1};
	/* Release, as x86 stores; the partner is the acquire in slots_used(). */
	__atomic_store_n(&head->slots, head->slots + fake_record__parts(record), __ATOMIC_RELEASE);
	__atomic_store_n(&head->records, record->number, __ATOMIC_RELEASE);
	return true;
}

static struct slot *slot_of(const struct fake_record *record, uint32_t part)
{
	const struct fake_slots *const fake = record->fake;
	const uint64_t at = (record->at + part) & (fake->map.slots_each - 1);

	return &fake->slots[(size_t)record->cpu * fake->map.slots_each + at];
}

void fake_record__open(const struct fake_record *record, uint32_t part)
{
	__atomic_store_n(&slot_of(record, part)->mark, 0, __ATOMIC_SEQ_CST);
}

void fake_record__fill(const struct fake_record *record, uint32_t part, uint64_t time_ns,
		       const uint8_t *data)
{
	struct slot *const slot = slot_of(record, part);
	const uint32_t what = part == 0 ? record->kind : SLOT_MORE | part;
	uint8_t whole[SLOT_DATA_MAX] = {0}, *from = whole + SLOT_FIRST_BYTES;
	uint32_t words[3];

	memcpy(whole, data, record->bytes);
	if (part == 0) {
		from = whole;
	} else {
		from += (part - 1) * SLOT_MORE_BYTES;
		memcpy(&time_ns, from, sizeof(time_ns));
		from += sizeof(time_ns);
	}
	memcpy(words, from, sizeof(words));
	/* Release: x86 makes stores visible in their order. The partner is the acquire of the mark in
	 * slot_ring__copy_slot(). */
	__atomic_store_n(&slot->time_ns, time_ns, __ATOMIC_RELEASE);
	for (int i = 0; i < 3; i++)
		__atomic_store_n(&slot->data[i], words[i], __ATOMIC_RELEASE);
	__atomic_store_n(&slot->mark, (uint32_t)(record->number << 8) | what, __ATOMIC_RELEASE);
}

void fake_record__write(const struct fake_record *record, uint64_t time_ns, const uint8_t *data)
{
	for (uint32_t part = 0; part < fake_record__parts(record); part++) {
		fake_record__open(record, part);
		fake_record__fill(record, part, time_ns, data);
	}
}
