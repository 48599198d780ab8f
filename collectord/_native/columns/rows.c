/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <errno.h>
#include <stdlib.h>

#define ROWS_FIRST 2048u

int rows__grow(struct rows *rows)
{
	const size_t room = rows->room > 0 ? 2 * rows->room : ROWS_FIRST;
	struct row *const more = realloc(rows->row, room * sizeof(*more));

	if (more == NULL)
		return -ENOMEM;
	rows->row = more;
	rows->room = room;
	return 0;
}

void rows__deinit(struct rows *rows)
{
	free(rows->row);
	*rows = (struct rows){0};
}
