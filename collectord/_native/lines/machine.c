/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <fnmatch.h>
#include <string.h>

#include "../columns/blktrace.h"
#include "../columns/rows.h"
#include "../walk.h"
#include "put.h"

#define STACK_MAX 32u
#define MADE_MAX 256u /* room that a made text of bounded length is given */
#define PATTERN_BYTES 4096u
#define MINOR_BITS 20u
#define MINOR_MASK ((1u << MINOR_BITS) - 1)
#define ERRNO_MAX 4095

static uint64_t extended(uint64_t number, uint8_t bytes, bool is_signed)
{
	if (bytes >= 8)
		return number;
	number &= ~(~UINT64_C(0) << 8 * bytes);
	if (is_signed && (number >> (8 * bytes - 1) & 1) != 0)
		number |= ~UINT64_C(0) << 8 * bytes;
	return number;
}

static inline struct value number_of(uint64_t number, bool is_signed)
{
	return (struct value){.kind = VALUE_NUMBER, .is_signed = is_signed, .number = number};
}

static struct value inline_of(const struct record *record, const struct op *op)
{
	uint64_t number = 0;

	if (record->bytes < op->a || record->bytes - op->a < op->c)
		return (struct value){0};
	memcpy(&number, record->payload + op->c, op->a);
	return number_of(extended(number, op->a, op->b != 0), op->b != 0);
}

static struct value float_of(const struct record *record, const struct op *op)
{
	struct value value = {.kind = VALUE_FLOAT};
	float narrow;

	if (record->bytes < op->a || record->bytes - op->a < op->c)
		return (struct value){0};
	if (op->a == sizeof(narrow)) {
		memcpy(&narrow, record->payload + op->c, sizeof(narrow));
		value.real = (double)narrow;
	} else {
		memcpy(&value.real, record->payload + op->c, sizeof(value.real));
	}
	return value;
}

static struct value span_of(const struct record *record, const struct op *op)
{
	uint64_t start = op->c, bytes = op->d;

	if (op->code != OP_SPAN) {
		uint32_t where;

		if (record->bytes < sizeof(where) || record->bytes - sizeof(where) < op->c)
			return (struct value){0};
		where = load32(record->payload + op->c);
		start = (where & UINT16_MAX) + (op->code == OP_REL_LOC ? op->c + 4 : 0);
		bytes = where >> 16;
		if (start + bytes > record->bytes)
			return (struct value){0};
	} else if (start > record->bytes) {
		return (struct value){0};
	} else if (bytes == 0) {
		bytes = record->bytes - start;
	} else if (bytes > record->bytes - start) {
		/* kernel_stack declares 8 entries, but its records hold only as many as there
		 * were. */
		if (op->a != VALUE_LIST)
			return (struct value){0};
		bytes = record->bytes - start;
	}
	return (struct value){.kind = op->a,
			      .is_signed = (op->b & OP_SIGNED) != 0,
			      .element = (uint8_t)op->b,
			      .bytes = (uint32_t)bytes,
			      .data = record->payload + start};
}

static bool has_data(const struct value *value)
{
	return value->kind >= VALUE_TEXT;
}

static struct value element_at(const struct op *op, const struct value *list,
			       const struct value *index)
{
	uint64_t number = 0;

	if (!has_data(list) || index->kind != VALUE_NUMBER || index->number >= list->bytes / op->a)
		return (struct value){0};
	memcpy(&number, list->data + index->number * op->a, op->a);
	return number_of(extended(number, op->a, op->b != 0), op->b != 0);
}

/* The first `count` numbers of a list. */
static struct value cut(const struct op *op, struct value list, const struct value *count)
{
	if (!has_data(&list) || count->kind != VALUE_NUMBER)
		return (struct value){0};
	list.element = op->a;
	if (count->number < list.bytes / op->a)
		list.bytes = (uint32_t)count->number * op->a;
	return list;
}

/* Of two numbers. */
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
	return number_of(result, is_signed);
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
		return number_of(fnmatch(word->data, (const char *)have, FNM_NOESCAPE) == 0, false);
	return number_of(bytes == word->bytes && memcmp(have, word->data, bytes) == 0, false);
}

/* The room for made text, at least MADE_MAX bytes unless a record has filled it. */
static uint8_t *room_of(struct machine *machine, size_t *room)
{
	*room = SCRATCH_BYTES - machine->made;
	return machine->scratch + machine->made;
}

static struct value made_of(struct machine *machine, size_t bytes)
{
	const struct value value = {.kind = VALUE_TEXT,
				    .bytes = (uint32_t)bytes,
				    .data = machine->scratch + machine->made};

	machine->made += bytes;
	return value;
}

static size_t made_number(uint8_t *to, size_t room, uint64_t number, enum fallback how)
{
	uint8_t digits[2 * DIGITS_MAX], *const end = digits + sizeof(digits), *start;
	size_t bytes;

	if (how == FALLBACK_HEX) {
		start = digits__hex(end, number, false);
		*--start = 'x';
		*--start = '0';
	} else if (how == FALLBACK_DEVICE) {
		start = digits__decimal(end, number & MINOR_MASK);
		*--start = ':';
		start = digits__decimal(start, number >> MINOR_BITS);
	} else {
		start = digits__decimal(end, (int64_t)number < 0 ? 0 - number : number);
		if ((int64_t)number < 0)
			*--start = '-';
	}
	bytes = (size_t)(end - start);
	if (bytes > room)
		return 0;
	memcpy(to, start, bytes);
	return bytes;
}

static struct value text_of(const struct word *word)
{
	return (struct value){
		.kind = VALUE_TEXT, .bytes = word->bytes, .data = (const uint8_t *)word->data};
}

static struct value symbol_of(struct machine *machine, const struct op *op, uint64_t number)
{
	const struct table *const table = &machine->words.table[op->c];
	size_t low = 0, high = table->count, room;
	uint8_t *to;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (table->entry[middle].value < number)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < table->count && table->entry[low].value == number)
		return text_of(&machine->words.text[table->entry[low].text]);
	to = room_of(machine, &room);
	return made_of(machine, made_number(to, room, number, (enum fallback)op->a));
}

static struct value errno_of(struct machine *machine, const struct op *op, uint64_t number)
{
	const struct op found = {.a = FALLBACK_DECIMAL, .c = op->c};

	if (number <= UINT32_MAX && number > UINT32_MAX - ERRNO_MAX)
		number = extended(number, 4, true);
	return symbol_of(machine, &found, number);
}

/* As kernel/trace/trace_output.c, trace_print_flags_seq(). */
static struct value flags_of(struct machine *machine, const struct op *op, uint64_t number)
{
	const struct table *const table = &machine->words.table[op->c];
	const struct word *const between = &machine->words.text[op->d];
	size_t room, made = 0;
	uint8_t *const to = room_of(machine, &room);

	for (size_t i = 0; i < table->count && number != 0; i++) {
		const struct word *const word = &machine->words.text[table->entry[i].text];
		const uint64_t mask = table->entry[i].value;

		if ((number & mask) != mask)
			continue;
		if ((size_t)between->bytes + word->bytes > room - made)
			break;
		number &= ~mask;
		if (made > 0) {
			memcpy(to + made, between->data, between->bytes);
			made += between->bytes;
		}
		memcpy(to + made, word->data, word->bytes);
		made += word->bytes;
	}
	if (number != 0 && room - made > between->bytes) {
		if (made > 0) {
			memcpy(to + made, between->data, between->bytes);
			made += between->bytes;
		}
		made += made_number(to + made, room - made, number, FALLBACK_HEX);
	}
	return made_of(machine, made);
}

static struct value address_of(struct machine *machine, const struct op *op,
			       const struct value *value)
{
	const uint8_t *data = value->data;
	size_t bytes = value->bytes, room;
	uint8_t *const to = room_of(machine, &room);

	if (value->kind == VALUE_NUMBER) {
		data = (const uint8_t *)&value->number;
		bytes = op->a;
	} else if (!has_data(value)) {
		return (struct value){0};
	}
	return made_of(machine, room > MADE_MAX ? made__address(to, room, data, bytes) : 0);
}

/* A value of text that is made of another one. */
static struct value made(struct machine *machine, const struct op *op, const struct value *value)
{
	size_t room;
	uint8_t *const to = room_of(machine, &room);
	size_t bytes;

	switch (op->code) {
	case OP_SYMBOL:
	case OP_FLAGS:
	case OP_ERRNO:
		if (value->kind != VALUE_NUMBER)
			return (struct value){0};
		if (op->code == OP_SYMBOL)
			return symbol_of(machine, op, value->number);
		return op->code == OP_FLAGS ? flags_of(machine, op, value->number)
					    : errno_of(machine, op, value->number);
	case OP_UNITS:
		if (value->kind != VALUE_NUMBER || room < MADE_MAX)
			return (struct value){0};
		return made_of(machine, made__units(to, room, (int64_t)value->number, op->a != 0));
	case OP_ADDRESS:
		return address_of(machine, op, value);
	default:
		if (!has_data(value))
			return (struct value){0};
		if (op->code == OP_HEX)
			bytes = made__hex(to, room, value->data, value->bytes, op->a);
		else if (op->code == OP_MASK)
			bytes = made__mask(to, room, value->data, value->bytes);
		else
			bytes = made__array(to, room, value);
		return made_of(machine, bytes);
	}
}

static struct value tail_of(const struct record *record, uint8_t kind)
{
	struct value value = {.kind = kind, .element = 1};

	if (record->tail == 0 || record->tail > record->bytes)
		return (struct value){0};
	value.data = record->payload + record->tail;
	value.bytes = record->bytes - record->tail;
	return value;
}

/* The text of the kind of a request, or of a device. */
static struct value named(struct machine *machine, const struct record *record, const struct op *op)
{
	size_t room, bytes = 0;
	char *const to = (char *)room_of(machine, &room);

	if (room < MADE_MAX)
		return (struct value){0};
	if (op->code == OP_RWBS)
		bytes = blk__rwbs(record->payload, record->bytes, to);
	else if (record->bytes >= sizeof(uint32_t) && record->bytes - sizeof(uint32_t) >= op->c)
		bytes = device__text(load32(record->payload + op->c), to);
	return bytes > 0 ? made_of(machine, bytes) : (struct value){0};
}

/* What the record says of itself. */
static struct value own_of(const struct record *record, const struct op *op)
{
	int32_t number;

	switch (op->code) {
	case OP_STAMP:
		return number_of(record->stamp_ns, false);
	case OP_COMM:
		return (struct value){
			.kind = VALUE_TEXT, .bytes = record->comm_bytes, .data = record->comm};
	case OP_CGROUP:
		if (record->cgroup == NULL)
			return (struct value){0};
		return (struct value){
			.kind = VALUE_TEXT, .bytes = record->cgroup_bytes, .data = record->cgroup};
	case OP_CHAIN:
		if (record->chain == NULL)
			return (struct value){0};
		return (struct value){.kind = VALUE_LIST,
				      .element = 8,
				      .number = op->a == 0, /* marks in it are left out */
				      .bytes = record->chain_bytes,
				      .data = record->chain};
	case OP_CPU:
		number = record->cpu;
		break;
	case OP_PID:
		number = record->pid;
		break;
	default:
		number = record->tid;
		break;
	}
	return number == ROW_NONE ? (struct value){0} : number_of((uint64_t)(int64_t)number, true);
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

	machine->made = 0;
	for (size_t at = 0; at < program->count && ret == 0; at++) {
		const struct op *const op = &program->op[at];
		struct value *const top = depth > 0 ? &stack[depth - 1] : &stack[0];

		if (depth == 0)
			*top = (struct value){0};
		/* What pushes has room, and what takes two has them. */
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
			stack[depth++] = text_of(&machine->words.text[op->c]);
			break;
		case OP_NUMBER:
			stack[depth++] = number_of(op->d, op->a != 0);
			break;
		case OP_INLINE:
			stack[depth++] = inline_of(record, op);
			break;
		case OP_FLOAT:
			stack[depth++] = float_of(record, op);
			break;
		case OP_SPAN:
		case OP_DATA_LOC:
		case OP_REL_LOC:
			stack[depth++] = span_of(record, op);
			break;
		case OP_TAIL:
			stack[depth++] = tail_of(record, op->a);
			break;
		case OP_RWBS:
		case OP_DEVICE:
			stack[depth++] = named(machine, record, op);
			break;
		case OP_STAMP:
		case OP_CPU:
		case OP_PID:
		case OP_TID:
		case OP_COMM:
		case OP_CGROUP:
		case OP_CHAIN:
			stack[depth++] = own_of(record, op);
			break;
		case OP_LENGTH:
			*top = has_data(top) ? number_of(top->bytes, false) : (struct value){0};
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
				*top = number_of(extended(top->number, op->a, op->b != 0),
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
