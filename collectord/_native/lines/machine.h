/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "../columns/store.h"
#include "made.h"
#include "program.h"
#include "record.h"

/*
 * A program makes the line of a record: it takes values out of it, computes with them, and appends
 * text. Programs are made outside, from formats in files: each is checked before it runs, jumps only
 * forwards, and reads nothing behind the end of a record. A value that a record does not have is
 * missing, and so is what is computed from it.
 */

struct machine {
	struct words words;
	struct store *out;
	struct scratch scratch;
};

/* Append the line of a record. Returns 1, 0 if the record is dropped, or -errno. */
int machine__run(struct machine *machine, const struct program *program,
		 const struct record *record);
