/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "arrow.h"
#include "cgroups.h"
#include "clocks.h"
#include "names.h"
#include "rows.h"
#include "spares.h"
#include "store.h"

/*
 * A column of a table is filled, batch by batch, with the values of one field of each row. Its kind
 * is a table of operations and decides its Arrow type; where the values come from is said by a
 * field, of which each file has its own: records of one event differ from kernel to kernel.
 */

/* Where the value of a field is. */
enum field_place {
	FIELD_MISSING, /* the records of this file have no such field: nulls */
	FIELD_STAMP,   /* from here on: what the row itself says */
	FIELD_UTC,     /* its stamp in the wall clock */
	FIELD_CPU,
	FIELD_PID,
	FIELD_TID,
	FIELD_COMM,	/* the name of the row's thread */
	FIELD_COMM_OF,	/* the name of the thread whose id is at `offset` */
	FIELD_LABEL,	/* the text of its file that the row names */
	FIELD_CONSTANT, /* the same text for all rows of a file */
	FIELD_RWBS,	/* the letters of a record of blktrace */
	FIELD_DEVICE,	/* a device number at `offset`, as text */
	FIELD_CGROUP, /* of perf, the path of the cgroup whose id is `offset` bytes before the end of
			 * the payload, or, if that is 0, where the row says */
	FIELD_INLINE,	/* from here on: in the payload, at `offset` */
	FIELD_DATA_LOC, /* at `offset` is a u32 that says where: size << 16 | offset */
	FIELD_REL_LOC,	/* the same, but its offset counts from behind the u32 */
	FIELD_CHAIN,	/* where the row says: a u64 that counts the u64s behind it */
	FIELD_TAIL,	/* from where the row says up to its end */
};

struct field {
	enum field_place place;
	uint32_t offset;
	uint32_t bytes;	 /* of the field itself; 0: it reaches to the end of the record */
	uint8_t element; /* bytes of a number, alone or in an array */
	bool is_signed;
	const char *text; /* of a constant; NULL: null */
	uint32_t text_bytes;
};

/* Fills of columns share this: the rows, and what is known of the file that they are from. */
struct fill {
	const struct rows *rows;
	const struct names *names;
	const struct cgroups *cgroups; /* NULL: the rows have none */
	const struct label *labels;
	size_t label_count;
	struct clocks *clocks;
};

/* A text of a file. */
struct label {
	char *text;
	uint32_t bytes;
};

struct column {
	const struct column_kind *kind;
	char *name;
	struct store valid;   /* a bit for each row; empty while there is no null */
	struct store offsets; /* of text, bytes and lists: int32, one more than rows */
	struct store values;
	size_t rows, nulls;
	struct spares *spares; /* of its stream */
	size_t slot;	       /* its first one */
};

struct column_kind {
	const char *name;
	const char *format; /* Arrow's; of a list that of its elements */
	uint8_t width;	    /* bytes of a number */
	bool is_list;
	bool has_offsets;
	/* Append a value for each row. Returns -errno. */
	int (*fill)(struct column *column, const struct field *field, const struct fill *fill);
};

/* Returns the kind of a name such as `u32`, `list_u64`, `text`, `bytes`, `time`; NULL: there is
 * none. */
const struct column_kind *column_kind__find(const char *name);

/* Append nulls. */
int column__nulls(struct column *column, size_t count);
/* Say that the row `at` of this batch is null; its value is there nevertheless. */
int column__set_null(struct column *column, size_t at);
/* Find an array in a payload, of whole elements. False: it reaches past the end. */
bool field__array(const struct field *field, const struct row *row, const uint8_t **start,
		  size_t *bytes);

/* The memory that the values take, as a bound of a batch. */
static inline size_t column__bytes(const struct column *column)
{
	return column->values.bytes;
}

/* Whether a row is not null, as no row is that has no bit. */
static inline bool column__is_valid(const struct column *column, size_t row)
{
	return row / 8 >= column->valid.bytes || (column->valid.data[row / 8] >> row % 8 & 1) != 0;
}

/* Returns where the value of a row begins, of text, bytes and lists; of one more row where all end. */
static inline int32_t column__offset(const struct column *column, size_t row)
{
	int32_t at;

	memcpy(&at, column->offsets.data + row * sizeof(at), sizeof(at));
	return at;
}

/* Describe the column. Returns -errno. */
int column__schema(const struct column *column, struct ArrowSchema *schema);
/* Take spare memory for a batch. */
void column__begin(struct column *column);
/* Hand over what was filled, and begin anew. Returns -errno. */
int column__export(struct column *column, struct ArrowArray *array);
void column__deinit(struct column *column);

int text__fill(struct column *column, const struct field *field, const struct fill *fill);
int bytes__fill(struct column *column, const struct field *field, const struct fill *fill);
int list__fill(struct column *column, const struct field *field, const struct fill *fill);
int number__fill(struct column *column, const struct field *field, const struct fill *fill);
