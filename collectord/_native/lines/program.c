/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../columns/store.h"

#define OPS_MAX 65536u

#define OP_NAME(code, name) [code] = (name),
const char *const op_names[OP_CODES] = {OP_LIST(OP_NAME)};

int words__add_text(struct words *words, const char *text, size_t bytes)
{
	char *copy;

	if (bytes > UINT32_MAX || array__grow(&words->text, words->texts, sizeof(*words->text)) < 0)
		return -ENOMEM;
	copy = malloc(bytes + 1);
	if (copy == NULL)
		return -ENOMEM;
	memcpy(copy, text, bytes);
	copy[bytes] = '\0';
	words->text[words->texts++] = (struct word){.data = copy, .bytes = (uint32_t)bytes};
	return 0;
}

int words__add_table(struct words *words, const struct entry *entry, size_t count)
{
	struct entry *copy;

	for (size_t i = 0; i < count; i++)
		if (entry[i].text >= words->texts)
			return -EINVAL;
	if (array__grow(&words->table, words->tables, sizeof(*words->table)) < 0)
		return -ENOMEM;
	copy = malloc((count > 0 ? count : 1) * sizeof(*copy));
	if (copy == NULL)
		return -ENOMEM;
	if (count > 0)
		memcpy(copy, entry, count * sizeof(*copy));
	words->table[words->tables++] = (struct table){.entry = copy, .count = count};
	return 0;
}

int words__add_width(struct words *words, uint32_t width)
{
	if (array__grow(&words->width, words->widths, sizeof(*words->width)) < 0)
		return -ENOMEM;
	words->width[words->widths++] = width;
	return 0;
}

void words__deinit(struct words *words)
{
	for (size_t i = 0; i < words->texts; i++)
		free(words->text[i].data);
	for (size_t i = 0; i < words->tables; i++)
		free(words->table[i].entry);
	free(words->text);
	free(words->table);
	free(words->width);
	*words = (struct words){0};
}

static bool is_sound(const struct words *words, const struct op *op, size_t left)
{
	switch (op->code) {
	case OP_LITERAL:
	case OP_TEXT:
	case OP_IS:
	case OP_LIKE:
		return op->c < words->texts;
	case OP_INLINE:
	case OP_ELEMENT:
	case OP_CUT:
	case OP_EXTEND:
		return op->a >= 1 && op->a <= 8;
	case OP_FLOAT:
		return op->a == 4 || op->a == 8;
	case OP_SPAN:
	case OP_DATA_LOC:
	case OP_REL_LOC:
		return op->a >= VALUE_TEXT && op->a <= VALUE_LIST && (uint8_t)op->b <= 8;
	case OP_TAIL:
		return op->a == VALUE_TEXT || op->a == VALUE_BYTES;
	case OP_FLAGS:
		return op->c < words->tables && op->d < words->texts;
	case OP_SYMBOL:
	case OP_ERRNO:
		return op->c < words->tables;
	case OP_ADDRESS:
		return op->a <= 8;
	case OP_JUMP:
	case OP_JUMP_ZERO:
	case OP_JUMP_MISSING:
		return op->c < left;
	case OP_COLUMN:
		return op->c < words->widths;
	case OP_PAD:
		return op->c <= UINT16_MAX;
	default:
		return op->code < OP_CODES;
	}
}

int program__init(struct program *program, const struct words *words, const struct op *op,
		  size_t count)
{
	if (count > OPS_MAX)
		return -E2BIG;
	for (size_t i = 0; i < count; i++)
		if (!is_sound(words, &op[i], count - i))
			return -EINVAL;
	program->op = malloc((count > 0 ? count : 1) * sizeof(*op));
	if (program->op == NULL)
		return -ENOMEM;
	if (count > 0)
		memcpy(program->op, op, count * sizeof(*op));
	program->count = count;
	return 0;
}

void program__deinit(struct program *program)
{
	free(program->op);
	*program = (struct program){0};
}
