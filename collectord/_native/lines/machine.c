/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <fnmatch.h>
#include <string.h>

#include "put.h"

#define STACK_MAX 32u
#define PATTERN_BYTES 4096u

static struct value element_at(const struct op *op, const struct value *list,
			       const struct value *index)
{
	uint64_t number = 0;

	if (!value__has_data(list) || index->kind != VALUE_NUMBER ||
	    index->number >= list->bytes / op->a)
		return (struct value){0};
	memcpy(&number, list->data + index->number * op->a, op->a);
	return value__of_number(number__extended(number, op->a, op->b != 0), op->b != 0);
}

/* The first `count` numbers of a list. */
static struct value cut(const struct op *op, struct value list, const struct value *count)
{
	if (!value__has_data(&list) || count->kind != VALUE_NUMBER)
		return (struct value){0};
	list.element = op->a;
	if (count->number < list.bytes / op->a)
		list.bytes = (uint32_t)count->number * op->a;
	return list;
}

/* Returns what an operation makes of two numbers. */
static struct value computed(const struct op *op, uint64_t x, uint64_t y)
{
	const int64_t sx = (int64_t)x, sy = (int64_t)y;
	const bool is_signed = op->b != 0;
	uint64_t result = 0;

	switch (op->code) {
	case OP_ADD:
		result = x + y;
		break;
	case OP_SUB:
		result = x - y;
		break;
	case OP_MUL:
		result = x * y;
		break;
	case OP_DIV:
	case OP_MOD:
		if (y == 0 || (is_signed && sx == INT64_MIN && sy == -1))
			return (struct value){0};
		if (op->code == OP_DIV)
			result = is_signed ? (uint64_t)(sx / sy) : x / y;
		else
			result = is_signed ? (uint64_t)(sx % sy) : x % y;
		break;
	case OP_SHL:
		result = y < 64 ? x << y : 0;
		break;
	case OP_SHR:
		if (y >= 64)
			result = is_signed && sx < 0 ? ~UINT64_C(0) : 0;
		else
			result = is_signed && sx < 0 && y > 0 ? (x >> y) | ~UINT64_C(0) << (64 - y)
							      : x >> y;
		break;
	case OP_AND:
		result = x & y;
		break;
	case OP_OR:
		result = x | y;
		break;
	case OP_XOR:
		result = x ^ y;
		break;
	case OP_EQ:
		result = x == y;
		break;
	case OP_NE:
		result = x != y;
		break;
	case OP_LT:
		result = is_signed ? sx < sy : x < y;
		break;
	case OP_LE:
		result = is_signed ? sx <= sy : x <= y;
		break;
	case OP_GT:
		result = is_signed ? sx > sy : x > y;
		break;
	default:
		result = is_signed ? sx >= sy : x >= y;
		break;
	}
	return value__of_number(result, is_signed);
}

/* Text with the bytes that are no UTF-8 as \xNN, in room of the stack. */
static size_t readable(uint8_t *to, const struct value *text)
{
	struct store store = {.data = to, .room = PATTERN_BYTES};
	size_t bytes = text->bytes < PATTERN_BYTES / 4 ? text->bytes : PATTERN_BYTES / 4 - 1;

	(void)store__put_text(&store, text->data, bytes); /* it fits */
	to[store.bytes] = '\0';
	return store.bytes;
}

static struct value compared(const struct machine *machine, const struct op *op,
			     const struct value *text)
{
	const struct word *const word = &machine->words.text[op->c];
	uint8_t have[PATTERN_BYTES + 1];
	size_t bytes;

	if (text->kind != VALUE_TEXT)
		return (struct value){0};
	bytes = readable(have, text);
	if (op->code == OP_LIKE)
		return value__of_number(fnmatch(word->data, (const char *)have, FNM_NOESCAPE) == 0,
					false);
	return value__of_number(bytes == word->bytes && memcmp(have, word->data, bytes) == 0, false);
}

/* A value of text that is made of another one. */
static struct value made(struct machine *machine, const struct op *op, const struct value *value)
{
	struct scratch *const scratch = &machine->scratch;

	switch (op->code) {
	case OP_SYMBOL:
	case OP_FLAGS:
	case OP_ERRNO:
	case OP_UNITS:
		if (value->kind != VALUE_NUMBER)
			return (struct value){0};
		if (op->code == OP_SYMBOL)
			return made__symbol(scratch, &machine->words, op, value->number);
		if (op->code == OP_FLAGS)
			return made__flags(scratch, &machine->words, op, value->number);
		if (op->code == OP_ERRNO)
			return made__errno(scratch, &machine->words, op, value->number);
		return made__units(scratch, value->number, op->a != 0);
	case OP_ADDRESS:
		return made__address(scratch, value, op->a);
	default:
		if (!value__has_data(value))
			return (struct value){0};
		if (op->code == OP_HEX)
			return made__hex(scratch, value, op->a);
		return op->code == OP_MASK ? made__mask(scratch, value)
					   : made__array(scratch, value);
	}
}

static int print(struct machine *machine, const struct op *op, struct value *stack, size_t *depth,
		 const struct value *value)
{
	uint32_t width = op->c & UINT16_MAX, precision = op->c >> 16;
	uint16_t flags = op->b;

	if ((flags & PRINT_GIVEN) != 0 && *depth > 0) {
		const struct value given = stack[--*depth];

		precision = (uint32_t)given.number;
		if (given.kind != VALUE_NUMBER || (int64_t)given.number < 0)
			flags &= (uint16_t)~PRINT_PRECISION;
	}
	if ((flags & PRINT_WIDTH) != 0 && *depth > 0) {
		const struct value given = stack[--*depth];
		const int64_t signed_width = given.kind == VALUE_NUMBER ? (int64_t)given.number : 0;

		if (signed_width < 0)
			flags |= PRINT_LEFT;
		width = (uint32_t)(signed_width < 0 ? 0 - given.number : (uint64_t)signed_width);
	}
	return put__printed(machine->out, value, op->a, flags, width, precision);
}

/* Append a value in the way of an operation. */
static int append(struct machine *machine, const struct op *op, struct value *stack, size_t *depth)
{
	const struct value value = *depth > 0 ? stack[--*depth] : (struct value){0};

	switch (op->code) {
	case OP_PRINT:
		return print(machine, op, stack, depth, &value);
	case OP_PLAIN:
		return put__plain(machine->out, &value, op->a != 0);
	case OP_QUOTED:
		return put__quoted(machine->out, &value, op->a != 0);
	case OP_CELL:
		return put__cell(machine->out, &value);
	default:
		return put__seconds(machine->out, value.number);
	}
}

static int pad(struct machine *machine, const struct op *op, size_t mark)
{
	uint32_t *const grown = op->code == OP_COLUMN ? &machine->words.width[op->c] : NULL;
	const int64_t have =
		put__pad(machine->out, mark, grown != NULL ? *grown : op->c, op->a != 0);

	if (have < 0)
		return (int)have;
	if (grown != NULL && have > *grown)
		*grown = (uint32_t)(have < UINT16_MAX ? have : UINT16_MAX);
	return 0;
}

int machine__run(struct machine *machine, const struct program *program, const struct record *record)
{
	struct store *const out = machine->out;
	const size_t start = out->bytes;
	struct value stack[STACK_MAX];
	size_t depth = 0, mark = start;
	bool is_lost = false; /* values that had no room: from there on all are shown as missing */
	int ret = 0;

	machine->scratch.bytes = 0;
	for (size_t at = 0; at < program->count && ret == 0; at++) {
		const struct op *const op = &program->op[at];
		struct value *const top = depth > 0 ? &stack[depth - 1] : &stack[0];

		if (depth == 0)
			*top = (struct value){0};
		/* An operation that pushes needs room, and one that takes two values needs them. */
		if (depth == STACK_MAX ||
		    (depth < 2 && op->code >= OP_ELEMENT && op->code <= OP_NE)) {
			is_lost = true;
			depth = 0;
			continue;
		}
		switch (op->code) {
		case OP_LITERAL:
			ret = put__bytes(out, machine->words.text[op->c].data,
					 machine->words.text[op->c].bytes);
			break;
		case OP_TEXT:
			stack[depth++] = value__of_word(&machine->words.text[op->c]);
			break;
		case OP_NUMBER:
			stack[depth++] = value__of_number(op->d, op->a != 0);
			break;
		case OP_INLINE:
			stack[depth++] = record__number(record, op);
			break;
		case OP_FLOAT:
			stack[depth++] = record__float(record, op);
			break;
		case OP_SPAN:
		case OP_DATA_LOC:
		case OP_REL_LOC:
			stack[depth++] = record__span(record, op);
			break;
		case OP_TAIL:
			stack[depth++] = record__tail(record, op->a);
			break;
		case OP_RWBS:
			stack[depth++] = made__rwbs(&machine->scratch, record);
			break;
		case OP_DEVICE:
			stack[depth++] = made__device(&machine->scratch, record, op->c);
			break;
		case OP_STAMP:
		case OP_CPU:
		case OP_PID:
		case OP_TID:
		case OP_COMM:
		case OP_CGROUP:
		case OP_CHAIN:
			stack[depth++] = record__own(record, op);
			break;
		case OP_LENGTH:
			*top = value__has_data(top) ? value__of_number(top->bytes, false)
						    : (struct value){0};
			break;
		case OP_ELEMENT:
			depth--;
			stack[depth - 1] = element_at(op, &stack[depth - 1], top);
			break;
		case OP_CUT:
			depth--;
			stack[depth - 1] = cut(op, stack[depth - 1], top);
			break;
		case OP_NEG:
		case OP_INVERT:
		case OP_NOT:
		case OP_EXTEND:
			if (top->kind != VALUE_NUMBER)
				*top = (struct value){0};
			else if (op->code == OP_EXTEND)
				*top = value__of_number(number__extended(top->number, op->a,
									 op->b != 0),
							op->b != 0);
			else
				top->number = op->code == OP_NEG      ? 0 - top->number
					      : op->code == OP_INVERT ? ~top->number
								      : top->number == 0;
			break;
		case OP_IS:
		case OP_LIKE:
			*top = compared(machine, op, top);
			break;
		case OP_SYMBOL:
		case OP_FLAGS:
		case OP_ERRNO:
		case OP_UNITS:
		case OP_ADDRESS:
		case OP_HEX:
		case OP_MASK:
		case OP_ARRAY:
			*top = made(machine, op, top);
			break;
		case OP_JUMP:
			at += op->c;
			break;
		case OP_JUMP_ZERO:
			if (top->kind != VALUE_NUMBER || top->number == 0)
				at += op->c;
			depth -= depth > 0;
			break;
		case OP_JUMP_MISSING:
			if (top->kind == VALUE_MISSING)
				at += op->c;
			break;
		case OP_POP:
			depth -= depth > 0;
			break;
		case OP_KEEP:
			if (top->kind != VALUE_NUMBER || top->number == 0) {
				out->bytes = start;
				return 0;
			}
			depth -= depth > 0;
			break;
		case OP_PRINT:
		case OP_PLAIN:
		case OP_QUOTED:
		case OP_CELL:
		case OP_SECONDS:
			if (is_lost && depth > 0)
				stack[depth - 1] = (struct value){0};
			ret = append(machine, op, stack, &depth);
			break;
		case OP_MARK:
			mark = out->bytes;
			break;
		case OP_PAD:
		case OP_COLUMN:
			ret = pad(machine, op, mark);
			break;
		case OP_TRIM:
			while (out->bytes > start && out->data[out->bytes - 1] == ' ')
				out->bytes--;
			break;
		default: /* of two numbers */
			depth--;
			if (top->kind != VALUE_NUMBER || stack[depth - 1].kind != VALUE_NUMBER)
				stack[depth - 1] = (struct value){0};
			else
				stack[depth - 1] =
					computed(op, stack[depth - 1].number, top->number);
			break;
		}
	}
	return ret < 0 ? ret : 1;
}
