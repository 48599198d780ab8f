/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "../columns/rows.h"
#include "../walk.h"
#include "value.h"

/* A line is made of this. Values are taken out of it as operations say; one that reaches behind its
 * end is missing. */
struct record {
	const uint8_t *payload;
	const uint8_t *chain; /* of u64 */
	const uint8_t *comm;
	const uint8_t *cgroup; /* NULL: nothing tells it */
	uint64_t stamp_ns;
	uint32_t bytes; /* of the payload */
	uint32_t tail;	/* offset of what reaches to its end, 0: it has none */
	uint32_t chain_bytes, comm_bytes, cgroup_bytes;
	int32_t cpu, pid, tid;
};

/* A number at a fixed place. */
static inline struct value record__number(const struct record *record, const struct op *op)
{
	uint64_t number = 0;

	if (record->bytes < op->a || record->bytes - op->a < op->c)
		return (struct value){0};
	memcpy(&number, record->payload + op->c, op->a);
	return value__of_number(number__extended(number, op->a, op->b != 0), op->b != 0);
}

static inline struct value record__float(const struct record *record, const struct op *op)
{
	struct value value = {.kind = VALUE_FLOAT};
	float narrow;

	if (record->bytes < op->a || record->bytes - op->a < op->c)
		return (struct value){0};
	if (op->a == sizeof(narrow)) {
		memcpy(&narrow, record->payload + op->c, sizeof(narrow));
		value.real = (double)narrow;
	} else {
		memcpy(&value.real, record->payload + op->c, sizeof(value.real));
	}
	return value;
}

/* Text, bytes or a list. */
static inline struct value record__span(const struct record *record, const struct op *op)
{
	uint64_t start = op->c, bytes = op->d;

	if (op->code != OP_SPAN) {
		uint32_t where;

		if (record->bytes < sizeof(where) || record->bytes - sizeof(where) < op->c)
			return (struct value){0};
		where = load32(record->payload + op->c);
		start = (where & UINT16_MAX) + (op->code == OP_REL_LOC ? op->c + 4 : 0);
		bytes = where >> 16;
		if (start + bytes > record->bytes)
			return (struct value){0};
	} else if (start > record->bytes) {
		return (struct value){0};
	} else if (bytes == 0) {
		bytes = record->bytes - start;
	} else if (bytes > record->bytes - start) {
		/* kernel_stack declares 8 entries, but its records hold only as many as there
		 * were. */
		if (op->a != VALUE_LIST)
			return (struct value){0};
		bytes = record->bytes - start;
	}
	return (struct value){.kind = op->a,
			      .is_signed = (op->b & OP_SIGNED) != 0,
			      .element = (uint8_t)op->b,
			      .bytes = (uint32_t)bytes,
			      .data = record->payload + start};
}

static inline struct value record__tail(const struct record *record, uint8_t kind)
{
	struct value value = {.kind = kind, .element = 1};

	if (record->tail == 0 || record->tail > record->bytes)
		return (struct value){0};
	value.data = record->payload + record->tail;
	value.bytes = record->bytes - record->tail;
	return value;
}

/* Returns what the record says of itself. */
static inline struct value record__own(const struct record *record, const struct op *op)
{
	int32_t number;

	switch (op->code) {
	case OP_STAMP:
		return value__of_number(record->stamp_ns, false);
	case OP_COMM:
		return (struct value){
			.kind = VALUE_TEXT, .bytes = record->comm_bytes, .data = record->comm};
	case OP_CGROUP:
		if (record->cgroup == NULL)
			return (struct value){0};
		return (struct value){
			.kind = VALUE_TEXT, .bytes = record->cgroup_bytes, .data = record->cgroup};
	case OP_CHAIN:
		if (record->chain == NULL)
			return (struct value){0};
		return (struct value){.kind = VALUE_LIST,
				      .element = 8,
				      .number = op->a == 0, /* marks in it are left out */
				      .bytes = record->chain_bytes,
				      .data = record->chain};
	case OP_CPU:
		number = record->cpu;
		break;
	case OP_PID:
		number = record->pid;
		break;
	default:
		number = record->tid;
		break;
	}
	return number == ROW_NONE ? (struct value){0}
				  : value__of_number((uint64_t)(int64_t)number, true);
}
