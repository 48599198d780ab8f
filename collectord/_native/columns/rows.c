/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <stdlib.h>

#define ROWS_FIRST 2048u

struct row *rows__add(struct rows *rows)
{
	if (rows->count == rows->room) {
		const size_t room = rows->room > 0 ? 2 * rows->room : ROWS_FIRST;
		struct row *const more = realloc(rows->row, room * sizeof(*more));

		if (more == NULL)
			return NULL;
		rows->row = more;
		rows->room = room;
	}
	return &rows->row[rows->count++];
}

void rows__deinit(struct rows *rows)
{
	free(rows->row);
	*rows = (struct rows){0};
}
