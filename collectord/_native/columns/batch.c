/* SPDX-License-Identifier: Apache-2.0 */
#include "batch.h"

#include <errno.h>
#include <stdlib.h>

#include "scan.h"

static void release_batch(struct ArrowArray *array)
{
	for (int64_t i = 0; i < array->n_children; i++) {
		if (array->children[i]->release != NULL)
			array->children[i]->release(array->children[i]);
		free(array->children[i]);
	}
	free(array->children);
	free(array->buffers);
	array->release = NULL;
}

int batch__export(struct column *columns, size_t count, size_t rows, struct ArrowArray *array)
{
	struct ArrowArray batch = {
		.length = (int64_t)rows,
		.n_buffers = 1,
		.buffers = calloc(1, sizeof(*batch.buffers)),
		.children = calloc(count > 0 ? count : 1, sizeof(*batch.children)),
		.release = release_batch,
	};
	int ret = batch.buffers == NULL || batch.children == NULL ? -ENOMEM : 0;

	for (size_t i = 0; i < count && ret == 0; i++) {
		struct ArrowArray *const child = calloc(1, sizeof(*child));

		if (child == NULL) {
			ret = -ENOMEM;
			break;
		}
		batch.children[batch.n_children++] = child;
		ret = column__export(&columns[i], child);
	}
	if (ret < 0)
		release_batch(&batch);
	else
		*array = batch;
	return ret;
}

static void release_schema(struct ArrowSchema *schema)
{
	for (int64_t i = 0; i < schema->n_children; i++) {
		if (schema->children[i]->release != NULL)
			schema->children[i]->release(schema->children[i]);
		free(schema->children[i]);
	}
	free(schema->children);
	schema->release = NULL;
}

int scan__schema(const struct scan *scan, struct ArrowSchema *schema)
{
	const size_t count = scan->column_count;
	int ret = 0;

	*schema = (struct ArrowSchema){
		.format = "+s",
		.name = "",
		.children = calloc(count > 0 ? count : 1, sizeof(*schema->children)),
		.release = release_schema,
	};
	if (schema->children == NULL)
		ret = -ENOMEM;
	for (size_t i = 0; i < count && ret == 0; i++) {
		struct ArrowSchema *const child = calloc(1, sizeof(*child));
		const struct column column = {.kind = scan->columns[i].kind,
					      .name = scan->columns[i].name};

		if (child == NULL) {
			ret = -ENOMEM;
			break;
		}
		schema->children[schema->n_children++] = child;
		ret = column__schema(&column, child);
	}
	if (ret < 0)
		release_schema(schema);
	return ret;
}
