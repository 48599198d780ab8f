/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "program.h"
#include "record.h"
#include "value.h"

#define SCRATCH_BYTES 4096u

/* The texts that were made for a line. */
struct scratch {
	size_t bytes;
	uint8_t data[SCRATCH_BYTES];
};

/* Text that is made of a value, as an operation says. What finds no room is cut, or empty. */

struct value made__symbol(struct scratch *scratch, const struct words *words, const struct op *op,
			  uint64_t number);
struct value made__flags(struct scratch *scratch, const struct words *words, const struct op *op,
			 uint64_t number);
struct value made__errno(struct scratch *scratch, const struct words *words, const struct op *op,
			 uint64_t number);
struct value made__units(struct scratch *scratch, uint64_t number, bool is_bytes);
/* These make text of a number of `bytes` bytes, or of data. */
struct value made__address(struct scratch *scratch, const struct value *value, uint8_t bytes);
struct value made__hex(struct scratch *scratch, const struct value *value, uint8_t between);
struct value made__mask(struct scratch *scratch, const struct value *value);
struct value made__array(struct scratch *scratch, const struct value *list);
/* The letters of a record of blktrace, and a device that a record has. */
struct value made__rwbs(struct scratch *scratch, const struct record *record);
struct value made__device(struct scratch *scratch, const struct record *record, uint32_t offset);
