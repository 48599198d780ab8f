/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>

#include "arrow.h"
#include "column.h"

/* A batch is what columns have of some rows: an array of structs, with a child for each column. */

/* Hand over the columns' rows. Returns -errno. */
int batch__export(struct column *columns, size_t count, size_t rows, struct ArrowArray *array);
