/* SPDX-License-Identifier: Apache-2.0 */
#include "made.h"

#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../columns/blktrace.h"
#include "../walk.h"
#include "digits.h"

#define BOUNDED_BYTES 256u /* room that a text of bounded length is given */
#define MINOR_BITS 20u
#define MINOR_MASK ((1u << MINOR_BITS) - 1)
#define ERRNO_MAX 4095

/* Returns the room that is left, at least BOUNDED_BYTES unless a record has filled it. */
static uint8_t *room_of(struct scratch *scratch, size_t *room)
{
	*room = SCRATCH_BYTES - scratch->bytes;
	return scratch->data + scratch->bytes;
}

static struct value made_of(struct scratch *scratch, size_t bytes)
{
	const struct value value = {.kind = VALUE_TEXT,
				    .bytes = (uint32_t)bytes,
				    .data = scratch->data + scratch->bytes};

	scratch->bytes += bytes;
	return value;
}

/* Returns the bytes of a number, 0 without room. */
static size_t put_number(uint8_t *to, size_t room, uint64_t number, enum fallback how)
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

struct value made__symbol(struct scratch *scratch, const struct words *words, const struct op *op,
			  uint64_t number)
{
	const struct table *const table = &words->table[op->c];
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
		return value__of_word(&words->text[table->entry[low].text]);
	to = room_of(scratch, &room);
	return made_of(scratch, put_number(to, room, number, (enum fallback)op->a));
}

struct value made__errno(struct scratch *scratch, const struct words *words, const struct op *op,
			 uint64_t number)
{
	const struct op found = {.a = FALLBACK_DECIMAL, .c = op->c};

	if (number <= UINT32_MAX && number > UINT32_MAX - ERRNO_MAX)
		number = number__extended(number, 4, true);
	return made__symbol(scratch, words, &found, number);
}

/* Prints as trace_print_flags_seq() of kernel/trace/trace_output.c does. */
struct value made__flags(struct scratch *scratch, const struct words *words, const struct op *op,
			 uint64_t number)
{
	const struct table *const table = &words->table[op->c];
	const struct word *const between = &words->text[op->d];
	size_t room, made = 0;
	uint8_t *const to = room_of(scratch, &room);

	for (size_t i = 0; i < table->count && number != 0; i++) {
		const struct word *const word = &words->text[table->entry[i].text];
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
		made += put_number(to + made, room - made, number, FALLBACK_HEX);
	}
	return made_of(scratch, made);
}

struct value made__units(struct scratch *scratch, uint64_t number, bool is_bytes)
{
	static const char *const units[2][5] = {{"ns", "us", "ms", "s", NULL},
						{" B", " KiB", " MiB", " GiB", " TiB"}};
	const double step = is_bytes ? 1024 : 1000;
	const int last = is_bytes ? 4 : 3;
	double shown = (double)(int64_t)number;
	size_t room;
	char *const to = (char *)room_of(scratch, &room), digits[32];
	int at = 0, bytes;

	if (room < BOUNDED_BYTES)
		return (struct value){0};
	while (at < last && fabs(shown) >= step) {
		shown /= step;
		at++;
	}
	if (at == 0) {
		bytes = snprintf(to, room, "%lld%s", (long long)number, units[is_bytes][0]);
	} else {
		(void)snprintf(digits, sizeof(digits), "%.4g", shown);
		if (strchr(digits, 'e') != NULL)
			(void)snprintf(digits, sizeof(digits), "%.0f", shown);
		bytes = snprintf(to, room, "%s%s", digits, units[is_bytes][at]);
	}
	return made_of(scratch, bytes > 0 && (size_t)bytes < room ? (size_t)bytes : 0);
}

static size_t put_hex(uint8_t *to, size_t room, const uint8_t *data, size_t bytes, uint8_t between)
{
	size_t made = 0;

	for (size_t i = 0; i < bytes && room - made >= 3; i++) {
		if (i > 0 && between != 0)
			to[made++] = between;
		made = (size_t)(digits__byte(to + made, data[i]) - to);
	}
	return made;
}

static size_t put_address(uint8_t *to, size_t room, const uint8_t *address, size_t bytes)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	int family = bytes == 4 ? AF_INET : AF_INET6;

	if (bytes != 4 && bytes != 16)
		return put_hex(to, room, address, bytes, 0);
	if (bytes == 16 && memcmp(address, mapped, sizeof(mapped)) == 0) {
		family = AF_INET;
		address += sizeof(mapped);
	}
	if (inet_ntop(family, address, (char *)to, (socklen_t)room) == NULL)
		return 0;
	return strlen((const char *)to);
}

struct value made__address(struct scratch *scratch, const struct value *value, uint8_t bytes)
{
	const bool is_number = value->kind == VALUE_NUMBER;
	const uint8_t *const data = is_number ? (const uint8_t *)&value->number : value->data;
	size_t room, made = 0;
	uint8_t *const to = room_of(scratch, &room);

	if (!is_number && !value__has_data(value))
		return (struct value){0};
	if (room > BOUNDED_BYTES)
		made = put_address(to, room, data, is_number ? bytes : value->bytes);
	return made_of(scratch, made);
}

struct value made__hex(struct scratch *scratch, const struct value *value, uint8_t between)
{
	size_t room;
	uint8_t *const to = room_of(scratch, &room);

	return made_of(scratch, put_hex(to, room, value->data, value->bytes, between));
}

/* Words of 32 bits, the last one first, with commas between them: lib/vsprintf.c, bitmap_string(). */
struct value made__mask(struct scratch *scratch, const struct value *value)
{
	size_t room, made = 0;
	uint8_t *const to = room_of(scratch, &room);

	for (size_t i = value->bytes; i > 0 && room - made >= 3; i--) {
		if (i < value->bytes && i % 4 == 0)
			to[made++] = ',';
		made = (size_t)(digits__byte(to + made, value->data[i - 1]) - to);
	}
	return made_of(scratch, made);
}

/* {0x1,0x2}: kernel/trace/trace_output.c, trace_print_array_seq(). */
struct value made__array(struct scratch *scratch, const struct value *list)
{
	uint8_t digits[DIGITS_MAX], *const end = digits + sizeof(digits);
	size_t room, made = 0;
	uint8_t *const to = room_of(scratch, &room);

	if (room < 2)
		return made_of(scratch, 0);
	to[made++] = '{';
	for (size_t at = 0;
	     list->element > 0 && list->bytes - at >= list->element && room - made > DIGITS_MAX + 4;
	     at += list->element) {
		const uint8_t *const start = digits__hex(end, value__element(list, at), false);

		if (at > 0)
			to[made++] = ',';
		to[made++] = '0';
		to[made++] = 'x';
		memcpy(to + made, start, (size_t)(end - start));
		made += (size_t)(end - start);
	}
	to[made++] = '}';
	return made_of(scratch, made);
}

struct value made__rwbs(struct scratch *scratch, const struct record *record)
{
	size_t room, bytes = 0;
	char *const to = (char *)room_of(scratch, &room);

	if (room >= BOUNDED_BYTES)
		bytes = blk__rwbs(record->payload, record->bytes, to);
	return bytes > 0 ? made_of(scratch, bytes) : (struct value){0};
}

struct value made__device(struct scratch *scratch, const struct record *record, uint32_t offset)
{
	size_t room, bytes = 0;
	char *const to = (char *)room_of(scratch, &room);

	if (room >= BOUNDED_BYTES && record->bytes >= sizeof(uint32_t) &&
	    record->bytes - sizeof(uint32_t) >= offset)
		bytes = device__text(load32(record->payload + offset), to);
	return bytes > 0 ? made_of(scratch, bytes) : (struct value){0};
}
