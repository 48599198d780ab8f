/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "sideband.h"
#include "records.h"
#include "walk.h"

static struct mapped_files files;

static void note(uint32_t pid, const char *name, uint64_t inode)
{
	uint8_t record[8192];

	record__mmap2(record, pid, 0x1000, 0x1000, name, 9);
	walk__store(record + 48, inode);
	mapped_files__note(&files, record);
}

/* The names since file `since`, with a blank behind each. */
static const char *names_since(uint64_t *since)
{
	static char names[1 << 16];
	size_t bytes, used = 0;
	uint8_t *const copy = mapped_files__copy(&files, since, &bytes);

	names[0] = 0;
	for (size_t at = 0; at < bytes; at += walk__size(walk__load(copy + at)))
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s ",
					 (const char *)copy + at + 72);
	free(copy);
	return names;
}

static const char *names(void)
{
	uint64_t since = 0;

	return names_since(&since);
}

static void begin(void)
{
	CHECK_EQ(mapped_files__init(&files), 0);
}

static void each_file_is_told_once(void)
{
	begin();
	note(1, "/lib/a", 7);
	note(2, "/lib/a", 7);
	note(1, "/lib/a", 8); /* replaced */
	note(1, "/lib/ab", 7);
	note(1, "/lib", 7);
	note(3, "/lib/ab", 7);
	CHECK(strcmp(names(), "/lib/a /lib/a /lib/ab /lib ") == 0);
	mapped_files__deinit(&files);
}

static void what_is_no_file_of_code_is_passed_over(void)
{
	uint8_t record[256];

	begin();
	note(1, "//anon", 0);
	note(1, "", 0);
	note(1, "[vdso]", 0);
	record__comm(record, 1, 1, "/lib/comm", 0, 9);
	mapped_files__note(&files, record);
	record__mmap2(record, 1, 0x1000, 0x1000, "/lib/data", 9);
	walk__store(record, walk__load(record) | (uint64_t)PERF_RECORD_MISC_MMAP_DATA << 32);
	mapped_files__note(&files, record);
	walk__store(record, walk__header(PERF_RECORD_MMAP2, 0, 72));
	mapped_files__note(&files, record);
	record__mmap2(record, 1, 0x1000, 0x1000, "/lib/x", 9);
	walk__store(record, walk__header(PERF_RECORD_MMAP2, 0, 80));
	memset(record + 72, 'x', 8); /* no end within the record */
	mapped_files__note(&files, record);
	CHECK(strcmp(names(), "[vdso] ") == 0);
	mapped_files__deinit(&files);
}

static void a_reader_gets_what_is_new(void)
{
	uint64_t since = 0;

	begin();
	CHECK(strcmp(names_since(&since), "") == 0);
	note(1, "/a", 1);
	note(1, "/b", 2);
	CHECK(strcmp(names_since(&since), "/a /b ") == 0);
	CHECK(strcmp(names_since(&since), "") == 0);
	note(1, "/c", 3);
	mapped_files__turn(&files);
	note(1, "/a", 1);
	CHECK(strcmp(names_since(&since), "/c /a ") == 0);
	CHECK(strcmp(names_since(&since), "") == 0);
	mapped_files__deinit(&files);
}

static void files_are_forgotten_with_the_segment_after_theirs(void)
{
	uint64_t since = 1;

	begin();
	note(1, "/a", 1);
	note(1, "/b", 2);
	mapped_files__turn(&files);
	note(1, "/b", 2);
	CHECK(strcmp(names(), "/a /b /b ") == 0);
	mapped_files__turn(&files);
	CHECK(strcmp(names(), "/b ") == 0);
	CHECK(strcmp(names_since(&since), "/b ") == 0);
	mapped_files__turn(&files);
	CHECK(strcmp(names(), "") == 0);
	mapped_files__deinit(&files);
}

static void a_full_set_drops_and_a_turn_makes_room(void)
{
	uint64_t since = 0;
	size_t bytes;
	char name[32];

	begin();
	for (uint32_t i = 0; i < MAPPED_FILES_MAX + 5; i++) {
		snprintf(name, sizeof(name), "/lib/%u", i);
		note(1, name, i);
	}
	CHECK_EQ(files.dropped, 5);
	note(1, "/lib/0", 0); /* known all the same */
	CHECK_EQ(files.dropped, 5);
	mapped_files__turn(&files);
	note(1, "/lib/new", 1);
	CHECK_EQ(files.dropped, 5);
	free(mapped_files__copy(&files, &since, &bytes));
	CHECK_EQ(since, MAPPED_FILES_MAX + 1);
	mapped_files__deinit(&files);
}

static void long_names_fill_the_memory_first(void)
{
	char name[4096];
	uint64_t since = 0;
	size_t bytes;

	begin();
	memset(name, 'n', sizeof(name) - 1);
	name[0] = '/';
	name[sizeof(name) - 1] = 0;
	for (uint64_t i = 0; i < 1000; i++)
		note(1, name, i);
	CHECK(files.dropped > 0);
	free(mapped_files__copy(&files, &since, &bytes));
	CHECK(bytes <= MAPPED_FILES_BYTES);
	CHECK_EQ(since + files.dropped, 1000);
	mapped_files__deinit(&files);
}

static bool makes_code(uint32_t pid)
{
	static uint32_t pids[2 * CODE_MAKERS_MAX];
	const size_t count = mapped_files__makers(&files, pids);

	for (size_t i = 0; i < count; i++)
		if (pids[i] == pid)
			return true;
	return false;
}

static void processes_that_make_code_are_told(void)
{
	begin();
	CHECK(!makes_code(5));
	note(5, "//anon", 0);
	note(5, "//anon", 0);
	note(6, "/lib/a", 1);
	note(7, "/memfd:doublemapper (deleted)", 2);
	note(8, "[vdso]", 0);
	note(9, "[heap]", 0);
	note(0, "//anon", 0);
	CHECK(makes_code(5) && makes_code(7) && makes_code(9));
	CHECK(!makes_code(6) && !makes_code(8) && !makes_code(0));
	CHECK_EQ(files.now->maker_count, 3);
	CHECK(strcmp(names(), "/lib/a /memfd:doublemapper (deleted) [vdso] [heap] ") == 0);
	mapped_files__turn(&files);
	note(7, "//anon", 0);
	CHECK(makes_code(5) && makes_code(7));
	mapped_files__turn(&files);
	CHECK(!makes_code(5) && makes_code(7));
	mapped_files__deinit(&files);
}

static void too_many_of_them_are_left_out(void)
{
	begin();
	for (uint32_t pid = 1; pid <= CODE_MAKERS_MAX + 5; pid++)
		note(pid, "//anon", 0);
	CHECK(makes_code(1) && makes_code(CODE_MAKERS_MAX));
	CHECK(!makes_code(CODE_MAKERS_MAX + 1));
	CHECK_EQ(files.dropped, 0);
	mapped_files__turn(&files);
	note(CODE_MAKERS_MAX + 1, "//anon", 0);
	CHECK(makes_code(CODE_MAKERS_MAX + 1));
	mapped_files__deinit(&files);
}

int main(void)
{
	RUN(each_file_is_told_once);
	RUN(what_is_no_file_of_code_is_passed_over);
	RUN(a_reader_gets_what_is_new);
	RUN(files_are_forgotten_with_the_segment_after_theirs);
	RUN(a_full_set_drops_and_a_turn_makes_room);
	RUN(long_names_fill_the_memory_first);
	RUN(processes_that_make_code_are_told);
	RUN(too_many_of_them_are_left_out);
	return 0;
}
