/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * A program that makes the lines of one kind of record, and the texts, tables and widths that programs
 * share. It is made outside, from formats in files, and checked before it runs.
 */

enum value_kind { VALUE_MISSING, VALUE_NUMBER, VALUE_FLOAT, VALUE_TEXT, VALUE_BYTES, VALUE_LIST };

/* Each operation is told with its operands and its name. `text` is the number of a text, `table` of
 * a table. Those from ELEMENT to NE take two values. */
#define OP_LIST(OP)                                                                                \
	OP(OP_LITERAL, "literal") /* append: c text */                                             \
	/* Push a value: */                                                                        \
	OP(OP_TEXT, "text")	/* c text */                                                       \
	OP(OP_NUMBER, "number") /* d, a: signed? */                                                \
	OP(OP_INLINE, "inline") /* a number of the payload: a bytes, b signed?, c offset */        \
	OP(OP_FLOAT, "float")	/* a bytes, c offset */                                            \
	/* a enum value_kind, b bytes of an element | OP_SIGNED, c offset, d bytes (0: rest) */    \
	OP(OP_SPAN, "span")                                                                        \
	OP(OP_DATA_LOC, "data_loc") /* the same, where the u32 at c says: size << 16 | offset */   \
	OP(OP_REL_LOC, "rel_loc")   /* the same, but its offset counts from behind the u32 */      \
	OP(OP_TAIL, "tail")	    /* a kind: all from a place of the record's own on */          \
	OP(OP_RWBS, "rwbs")	    /* the letters of a record of blktrace */                      \
	OP(OP_DEVICE, "device")	    /* the device number at c, as text */                          \
	OP(OP_STAMP, "stamp")                                                                      \
	OP(OP_CPU, "cpu")                                                                          \
	OP(OP_PID, "pid")                                                                          \
	OP(OP_TID, "tid")                                                                          \
	OP(OP_COMM, "comm")                                                                        \
	OP(OP_CGROUP, "cgroup") /* its path */                                                     \
	OP(OP_CHAIN, "chain")	/* the addresses of the call chain; a: 1 with the marks in it */   \
	/* Replace values on top by their result: */                                               \
	OP(OP_LENGTH, "length")	  /* bytes of a text or list */                                    \
	OP(OP_ELEMENT, "element") /* {list, index} to a number: a bytes, b signed? */              \
	OP(OP_CUT, "cut")	  /* {list, count} to a list of count numbers of a bytes */        \
	OP(OP_ADD, "+")                                                                            \
	OP(OP_SUB, "-")                                                                            \
	OP(OP_MUL, "*")                                                                            \
	OP(OP_DIV, "/") /* b signed?, as in those that follow up to GE; by 0: missing */           \
	OP(OP_MOD, "%")                                                                            \
	OP(OP_SHR, ">>")                                                                           \
	OP(OP_LT, "<")                                                                             \
	OP(OP_LE, "<=")                                                                            \
	OP(OP_GT, ">")                                                                             \
	OP(OP_GE, ">=")                                                                            \
	OP(OP_SHL, "<<")                                                                           \
	OP(OP_AND, "&")                                                                            \
	OP(OP_OR, "|")                                                                             \
	OP(OP_XOR, "^")                                                                            \
	OP(OP_EQ, "==")                                                                            \
	OP(OP_NE, "!=")                                                                            \
	OP(OP_NEG, "negate")                                                                       \
	OP(OP_INVERT, "~")                                                                         \
	OP(OP_NOT, "!")                                                                            \
	OP(OP_EXTEND, "extend") /* cut to a bytes, and extend; b signed? */                        \
	OP(OP_IS, "is")		/* a text is c text? */                                            \
	OP(OP_LIKE, "like")	/* it matches the glob c text? */                                  \
	/* a number to the text that c table, ascending, has; else a: enum fallback */             \
	OP(OP_SYMBOL, "symbol")                                                                    \
	OP(OP_FLAGS, "flags")	  /* its bits to texts of c table, joined by d text */             \
	OP(OP_ERRNO, "errno")	  /* a result: the name of a negative one, of c table */           \
	OP(OP_UNITS, "units")	  /* a: 0 ns, 1 bytes */                                           \
	OP(OP_ADDRESS, "address") /* an address of the internet, a bytes */                        \
	OP(OP_HEX, "hex")	  /* bytes as hex digits with a between them, 0: nothing */        \
	OP(OP_MASK, "mask")	  /* bits as the kernel prints cpumasks */                         \
	OP(OP_ARRAY, "array")	  /* a list as the kernel prints it */                             \
	/* Control: */                                                                             \
	OP(OP_JUMP, "jump")		    /* c operations on */                                  \
	OP(OP_JUMP_ZERO, "jump_zero")	    /* the same if the top, which goes, is 0 or missing */ \
	OP(OP_JUMP_MISSING, "jump_missing") /* the same if the top is missing; it stays */         \
	OP(OP_POP, "pop")                                                                          \
	OP(OP_KEEP, "keep") /* drop the record if the top, which goes, is 0 or missing */          \
	/* Append the top, which goes: */                                                          \
	/* `print` is printf's: a conversion, b enum print_flag, c width | precision << 16 */      \
	OP(OP_PRINT, "print")                                                                      \
	OP(OP_PLAIN, "plain")	  /* a: 1 hexadecimal */                                           \
	OP(OP_QUOTED, "quoted")	  /* as JSON; a: 1 as true or false */                             \
	OP(OP_CELL, "cell")	  /* as CSV */                                                     \
	OP(OP_SECONDS, "seconds") /* ns as seconds */                                              \
	/* Change what was appended since: */                                                      \
	OP(OP_MARK, "mark")                                                                        \
	OP(OP_PAD, "pad")	/* fill it up to c columns; a: 1 to the right */                   \
	OP(OP_COLUMN, "column") /* the same, c: the number of a width, which grows with it */      \
	OP(OP_TRIM, "trim")	/* remove spaces at the end of the line */

#define OP_CODE(code, name) code,
enum op_code { OP_LIST(OP_CODE) OP_CODES };

extern const char *const op_names[OP_CODES];

#define OP_SIGNED 0x100u

enum fallback { FALLBACK_HEX, FALLBACK_DECIMAL, FALLBACK_DEVICE };

enum print_flag {
	PRINT_LEFT = 1,
	PRINT_ZERO = 2,
	PRINT_PLUS = 4,
	PRINT_SPACE = 8,
	PRINT_ALTERNATE = 16,
	PRINT_WIDTH = 32,     /* the width is on the stack, below the value */
	PRINT_PRECISION = 64, /* there is a precision */
	PRINT_GIVEN = 128,    /* the precision is on the stack, below the value */
};

struct op {
	uint8_t code, a;
	uint16_t b;
	uint32_t c;
	uint64_t d;
};

struct program {
	struct op *op;
	size_t count;
};

/* Programs share these. */
struct words {
	struct word {
		char *data;
		uint32_t bytes;
	} *text;
	struct table {
		struct entry {
			uint64_t value;
			uint32_t text;
		} *entry;
		size_t count;
	} *table;
	uint32_t *width;
	size_t texts, tables, widths;
};

/* Copy and check a program. Returns -errno. */
int program__init(struct program *program, const struct words *words, const struct op *op,
		  size_t count);
void program__deinit(struct program *program);
int words__add_text(struct words *words, const char *text, size_t bytes);
int words__add_table(struct words *words, const struct entry *entry, size_t count);
int words__add_width(struct words *words, uint32_t width);
void words__deinit(struct words *words);
