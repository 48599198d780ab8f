/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "../columns/column.h"

/* The levels of a column, which precede the values in a page of a Parquet file: they say which rows are
 * null and, of lists, where each begins. */

/* Append the levels of a column to a page; `count` receives their number, `words` is used meanwhile.
 * Returns -errno. */
int levels__put(struct store *page, const struct column *column, struct store *words, size_t *count);
