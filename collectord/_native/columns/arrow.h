/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

/* The Arrow C data interface and C stream interface: plain structs, so that no Arrow library is
 * needed. Their layout is an ABI and is fixed by Arrow's specification. Who has a struct calls its
 * `release` once; a released struct has none. */

#define ARROW_FLAG_NULLABLE 2

struct ArrowSchema {
	const char *format;
	const char *name;
	const char *metadata;
	int64_t flags;
	int64_t n_children;
	struct ArrowSchema **children;
	struct ArrowSchema *dictionary;
	void (*release)(struct ArrowSchema *schema);
	void *private_data;
};

struct ArrowArray {
	int64_t length;
	int64_t null_count;
	int64_t offset;
	int64_t n_buffers;
	int64_t n_children;
	const void **buffers;
	struct ArrowArray **children;
	struct ArrowArray *dictionary;
	void (*release)(struct ArrowArray *array);
	void *private_data;
};

struct ArrowArrayStream {
	/* Both return 0 or an errno. An array without `release` is the end. */
	int (*get_schema)(struct ArrowArrayStream *stream, struct ArrowSchema *schema);
	int (*get_next)(struct ArrowArrayStream *stream, struct ArrowArray *array);
	const char *(*get_last_error)(struct ArrowArrayStream *stream);
	void (*release)(struct ArrowArrayStream *stream);
	void *private_data;
};
