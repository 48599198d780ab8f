# SPDX-License-Identifier: Apache-2.0
"""Small C programs whose functions are known, for profiles and their names."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# `main` calls `outer`, which calls `inner`; each spins, and `outer` has a part of `woven` in it.
SOURCE: Final = """
volatile unsigned long sink;
static inline __attribute__((always_inline)) void woven(unsigned long turns)
{
    while (turns--)
        sink ^= turns;
}
__attribute__((noinline)) void inner(unsigned long turns)
{
    while (turns--)
        sink += turns;
}
__attribute__((noinline)) void outer(unsigned long turns)
{
    inner(turns);
    woven(turns / 2);
    sink++;
}
int main(int argc, char **argv)
{
    for (int i = 0; i < (argc > 1 ? 1500 : 1); i++)
        outer(100000);
    (void)argv;
    return sink == 1;
}
"""
# The rare part of each function but `main` is elsewhere, and before all others; an empty one of a
# function that is not there has the address of the first.
RARE: Final = """
#include <stdlib.h>
__asm__(".pushsection .text.unlikely\\n"
        ".type neighbour.cold, @function\\nneighbour.cold:\\n.size neighbour.cold, 0\\n"
        ".popsection");
volatile int sink;
#define FUNCTION(name)                                   \\
    __attribute__((noinline)) void name(int turns)       \\
    {                                                    \\
        if (__builtin_expect(turns > 1000 + __LINE__, 0)) { \\
            sink = __LINE__;                             \\
            abort();                                     \\
        }                                                \\
        sink += turns * __LINE__;                        \\
    }
FUNCTION(first)
FUNCTION(second)
FUNCTION(third)
int main(int argc, char **argv)
{
    first(argc);
    second(argc);
    third(argc);
    (void)argv;
    return 0;
}
"""
# `main` calls `update`, which waits for a lock that another process holds for four tenths of a
# second, and `rest`, which sleeps for a tenth. Both wait in calls of libc that have no frame.
WAITING: Final = """
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void nap(long ns)
{
    struct timespec span = {0, ns};
    syscall(SYS_nanosleep, &span, 0);
}
static void lock(volatile int *held)
{
    while (*held)
        syscall(SYS_futex, held, FUTEX_WAIT, 1, 0, 0, 0);
}
__attribute__((noinline)) void update(volatile int *held)
{
    lock(held);
}
__attribute__((noinline)) void rest(void)
{
    nap(100000000);
}
int main(void)
{
    volatile int *held = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *held = 1;
    if (fork() == 0) {
        prctl(PR_SET_NAME, "lock-holder");
        nap(400000000);
        *held = 0;
        syscall(SYS_futex, held, FUTEX_WAKE, 1, 0, 0, 0);
        return 0;
    }
    prctl(PR_SET_NAME, "lock-waiter");
    update(held);
    rest();
    wait(0);
    return 0;
}
"""
_FLAGS: Final = ("-O0", "-fno-omit-frame-pointer")


def compile_busy(directory: Path, *flags: str, name: str = "busy") -> Path:
    """Compile the program; options for debug information or another kind of file are given."""
    return _compile(directory, name, SOURCE, *flags)


def compile_rare(directory: Path) -> Path:
    """Compile the program with rare parts, with debug information."""
    return _compile(directory, "rare", RARE, "-g", "-O2", "-fno-toplevel-reorder")


def compile_waiting(directory: Path) -> Path:
    """Compile the program that waits for a lock."""
    source = directory / "waiting.c"
    source.write_text(WAITING)
    binary = directory / "waiting"
    subprocess.run(["gcc", *_FLAGS, "-o", binary, source], check=True)
    return binary


def offset_of(binary: Path, function: str) -> int:
    """Return where a function begins in the file, as readelf tells it."""
    words = ["readelf", "-W", "-s", "-l", str(binary)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = re.search(rf"\d+: ([0-9a-f]+) +\d+ FUNC .* {function}$", text, re.MULTILINE)
    assert found, function
    address = int(found[1], 16)
    for offset, begin, size in re.findall(
        r"LOAD +0x([0-9a-f]+) 0x([0-9a-f]+) 0x[0-9a-f]+ 0x([0-9a-f]+)", text
    ):
        if int(begin, 16) <= address < int(begin, 16) + int(size, 16):
            return int(offset, 16) + address - int(begin, 16)
    raise AssertionError(function)


# It makes a function while it runs, tells of it in /tmp, and spins in it: for some time with an
# argument, else until it is killed. A line on stdout says that it does.
MAKER: Final = """
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
__attribute__((noinline, section("made_code"))) void moved(volatile unsigned long *sink,
                                                       unsigned long turns)
{
    while (turns--)
        *sink += turns;
}
extern const char __start_made_code[], __stop_made_code[];
__attribute__((noinline)) void caller(void (*made)(volatile unsigned long *, unsigned long))
{
    volatile unsigned long sink = 0;
    made(&sink, 100000);
    sink++;
}
int main(int argc, char **argv)
{
    const size_t size = (size_t)(__stop_made_code - __start_made_code);
    void *const place = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char name[64];
    FILE *map;
    memcpy(place, __start_made_code, size);
    __builtin___clear_cache((char *)place, (char *)place + size);
    snprintf(name, sizeof(name), "/tmp/perf-%d.map", getpid());
    map = fopen(name, "w");
    fprintf(map, "%lx %zx made while it ran\\n", (unsigned long)place, size);
    fclose(map);
    puts("spins");
    fflush(stdout);
    for (int i = 0; argc < 2 || i < 1500; i++)
        caller((void (*)(volatile unsigned long *, unsigned long))place);
    (void)argv;
    return 0;
}
"""


def compile_maker(directory: Path) -> Path:
    """Compile the program that makes code."""
    return _compile(directory, "maker", MAKER)


# Its first thread holds a lock while it waits for a line beneath `reader`; another waits for that
# lock beneath `locker`. In the end it prints how long each took, in ns. Functions of the C library
# have no frame pointers, so whoever calls them is not in a call chain.
WAITER: Final = """
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long locker_ns;
static long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}
__attribute__((noinline)) void take(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}
__attribute__((noinline)) long locker(void)
{
    const long begin_ns = now_ns();
    take();
    return now_ns() - begin_ns;
}
__attribute__((noinline)) void await_line(void)
{
    char line[1];
    (void)!read(0, line, 1);
}
__attribute__((noinline)) long reader(void)
{
    const long begin_ns = now_ns();
    await_line();
    return now_ns() - begin_ns;
}
static void *other(void *argument)
{
    locker_ns = locker();
    return argument;
}
int main(void)
{
    pthread_t thread;
    long reader_ns;
    pthread_mutex_lock(&lock);
    pthread_create(&thread, NULL, other, NULL);
    reader_ns = reader();
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    printf("%ld %ld\\n", reader_ns, locker_ns);
    return 0;
}
"""


def compile_waiter(directory: Path) -> Path:
    """Compile the program that waits."""
    return _compile(directory, "waiter", WAITER, "-g", "-pthread")


def _compile(directory: Path, name: str, text: str, *flags: str) -> Path:
    source = directory / f"{name}.c"
    source.write_text(text)
    binary = directory / name
    subprocess.run(["gcc", *_FLAGS, *flags, "-o", binary, source], check=True)
    return binary
