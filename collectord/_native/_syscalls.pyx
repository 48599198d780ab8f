# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Binding of system calls that the standard library lacks. Contracts are in `_syscalls.pyi`."""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EINVAL, ENOENT, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, mmap, munmap
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec
from posix.unistd cimport close

cdef extern from "<sys/timex.h>" nogil:
    cdef struct timex:
        unsigned int modes
        long maxerror
        long esterror
        int status
    int adjtimex(timex *state)
    int STA_UNSYNC


cdef extern from *:
    """
    #include <linux/blktrace_api.h>
    #include <linux/bpf.h>
    #include <linux/fs.h>
    #include <linux/membarrier.h>
    #include <linux/mount.h>
    #include <linux/perf_event.h>
    #include <sys/ioctl.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    // linux/trace_mmap.h, which older headers lack.
    #ifndef TRACE_MMAP_IOCTL_GET_READER
    #define TRACE_MMAP_IOCTL_GET_READER _IO('R', 0x20)
    #endif
    enum { BPF_PROGRAMS_ROOM = 64 }; // BPF_TRACE_MAX_PROGS: a tracepoint takes no more
    struct bpf_query { uint32_t room, count, ids[BPF_PROGRAMS_ROOM]; };
    """
    long SYS_perf_event_open, SYS_bpf, SYS_membarrier
    long SYS_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount
    long syscall(long number, ...) nogil
    int c_ioctl "ioctl"(int fd, unsigned long request, ...) nogil

    const unsigned long PERF_FLAG_FD_CLOEXEC
    const unsigned long PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_DISABLE, PERF_EVENT_IOC_REFRESH
    const unsigned long PERF_EVENT_IOC_PERIOD, PERF_EVENT_IOC_SET_OUTPUT, PERF_EVENT_IOC_ID
    const unsigned long PERF_EVENT_IOC_SET_FILTER, PERF_EVENT_IOC_PAUSE_OUTPUT
    const unsigned long PERF_EVENT_IOC_QUERY_BPF, TRACE_MMAP_IOCTL_GET_READER
    const unsigned long BLKTRACESETUP, BLKTRACESTART, BLKTRACESTOP, BLKTRACETEARDOWN
    const int MEMBARRIER_CMD_GLOBAL
    const long FSOPEN_CLOEXEC, FSCONFIG_CMD_CREATE, FSMOUNT_CLOEXEC
    const uint32_t BPF_PROGRAMS_ROOM
    struct bpf_query:
        uint32_t room, count
        uint32_t *ids
    struct blk_user_trace_setup:
        pass

    enum bpf_cmd:
        BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_GET_NEXT_KEY, BPF_MAP_LOOKUP_BATCH
        BPF_PROG_LOAD, BPF_PROG_GET_NEXT_ID, BPF_MAP_GET_NEXT_ID, BPF_LINK_GET_NEXT_ID
        BPF_PROG_GET_FD_BY_ID, BPF_BTF_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD
        BPF_RAW_TRACEPOINT_OPEN, BPF_ENABLE_STATS
    const uint32_t BPF_STATS_RUN_TIME
    struct attr_batch:
        uint64_t in_batch, out_batch, keys, values
        uint32_t count, map_fd
    struct attr_info:
        uint32_t bpf_fd, info_len
        uint64_t info
    struct attr_stats:
        uint32_t type
    struct attr_tracepoint:
        uint32_t prog_fd
    union bpf_attr:
        uint32_t map_fd
        uint64_t key, value, next_key
        uint32_t start_id, next_id
        uint32_t prog_type, insn_cnt, expected_attach_type, attach_btf_id
        uint64_t insns, license
        char *prog_name
        attr_batch batch
        attr_info info
        attr_stats enable_stats
        attr_tracepoint raw_tracepoint

# Room for the info of any object; the kernel accepts zeroes beyond the size it knows.
DEF INFO_BYTES = 256
cdef dict NEXT_ID = {"program": BPF_PROG_GET_NEXT_ID, "map": BPF_MAP_GET_NEXT_ID,
                     "link": BPF_LINK_GET_NEXT_ID}
cdef dict FD_BY_ID = {"program": BPF_PROG_GET_FD_BY_ID, "btf": BPF_BTF_GET_FD_BY_ID}


cdef int refuse(int code) except -1:
    raise OSError(code, os.strerror(code))


cdef int control(int fd, unsigned long request, uint64_t argument) except -1:
    cdef int ret, code
    with nogil:
        ret = c_ioctl(fd, request, argument)
        code = errno
    return refuse(code) if ret < 0 else 0


cdef int control_by(int fd, unsigned long request, void *argument) except -1:
    return control(fd, request, <uint64_t><size_t>argument)


cdef uint64_t place(const uint8_t[::1] data):
    return <uint64_t><size_t>&data[0] if data is not None and data.shape[0] > 0 else 0


cdef uint64_t room(bytes data):
    return <uint64_t><size_t>PyBytes_AS_STRING(data)


cdef int bpf(bpf_cmd command, bpf_attr *attr) except -1:
    cdef long ret
    cdef int code
    with nogil:
        ret = syscall(SYS_bpf, <long>command, attr, sizeof(bpf_attr))
        code = errno
    return refuse(code) if ret < 0 else <int>ret


def perf_event_open(attr not None, int pid, int cpu, int group_fd=-1, unsigned long flags=0):
    cdef bytearray own = bytearray(attr)  # the kernel writes the size that it knows into it
    cdef uint8_t[::1] data = own
    cdef uint32_t size
    cdef void *start
    cdef long ret
    cdef int code
    if len(own) >= 8:
        memcpy(&size, &data[4], sizeof(size))
    if len(own) < 8 or size > <size_t>len(own):
        raise ValueError(f"attributes of {len(own)} bytes end before their own size")
    start = &data[0]
    flags |= PERF_FLAG_FD_CLOEXEC
    with nogil:
        ret = syscall(SYS_perf_event_open, start, <long>pid, <long>cpu, <long>group_fd, flags)
        code = errno
    return refuse(code) if ret < 0 else ret


def perf_enable(int fd):
    control(fd, PERF_EVENT_IOC_ENABLE, 0)


def perf_disable(int fd):
    control(fd, PERF_EVENT_IOC_DISABLE, 0)


def perf_refresh(int fd, int overflows):
    control(fd, PERF_EVENT_IOC_REFRESH, overflows)


def perf_set_period(int fd, uint64_t period):
    control_by(fd, PERF_EVENT_IOC_PERIOD, &period)


def perf_set_output(int fd, int ring_fd):
    control(fd, PERF_EVENT_IOC_SET_OUTPUT, <uint64_t>ring_fd)


def perf_set_filter(int fd, bytes text not None):
    control_by(fd, PERF_EVENT_IOC_SET_FILTER, PyBytes_AS_STRING(text))


def perf_event_id(int fd):
    cdef uint64_t number = 0
    control_by(fd, PERF_EVENT_IOC_ID, &number)
    return number


def perf_pause_output(int fd, bint paused):
    control(fd, PERF_EVENT_IOC_PAUSE_OUTPUT, paused)


def perf_query_bpf(int fd):
    cdef bpf_query query
    memset(&query, 0, sizeof(query))
    query.room = BPF_PROGRAMS_ROOM
    control_by(fd, PERF_EVENT_IOC_QUERY_BPF, &query)
    return tuple(query.ids[i] for i in range(min(query.count, query.room)))


def blktrace_setup(int fd, bytes setup not None):
    cdef bytearray own = bytearray(setup)
    cdef uint8_t[::1] data = own
    if len(own) != sizeof(blk_user_trace_setup):
        raise ValueError(f"a setup of {len(own)} bytes")
    control_by(fd, BLKTRACESETUP, &data[0])
    return bytes(own)


def blktrace_start(int fd):
    control(fd, BLKTRACESTART, 0)


def blktrace_stop(int fd):
    control(fd, BLKTRACESTOP, 0)


def blktrace_teardown(int fd):
    control(fd, BLKTRACETEARDOWN, 0)


def ftrace_next_reader(int fd):
    control(fd, TRACE_MMAP_IOCTL_GET_READER, 0)


def copy_mapped(int fd, size_t at, size_t size):
    cdef bytes copied = PyBytes_FromStringAndSize(NULL, size)
    cdef char *to = PyBytes_AS_STRING(copied)
    cdef size_t length = at + size
    cdef void *start
    cdef int code
    if length < at:
        refuse(EINVAL)
    with nogil:
        start = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0)
        code = errno
        if start != MAP_FAILED:
            memcpy(to, <char *>start + at, size)
            munmap(start, length)
    if start == MAP_FAILED:
        refuse(code)
    return copied


cdef uint64_t now_ns(int clock) noexcept nogil:
    cdef timespec time
    clock_gettime(clock, &time)
    return <uint64_t>time.tv_sec * 1_000_000_000 + <uint64_t>time.tv_nsec


def touch_between_clocks(uint8_t[::1] page):
    cdef uint8_t byte
    cdef volatile uint8_t *touched = &byte if page is None else &page[0]
    cdef uint64_t before = now_ns(CLOCK_MONOTONIC), realtime, after
    touched[0] = 1
    realtime = now_ns(CLOCK_REALTIME)
    after = now_ns(CLOCK_MONOTONIC)
    return before, realtime, after, <uint64_t><size_t>touched


def clock_discipline():
    cdef timex state
    cdef int ret, code
    memset(&state, 0, sizeof(state))
    with nogil:
        ret = adjtimex(&state)
        code = errno
    if ret < 0:
        refuse(code)
    return (state.status & STA_UNSYNC) == 0, <long>state.maxerror, <long>state.esterror


def membarrier_global():
    cdef long ret
    cdef int code
    with nogil:
        ret = syscall(SYS_membarrier, <long>MEMBARRIER_CMD_GLOBAL, <long>0, <long>0)
        code = errno
    if ret < 0:
        refuse(code)


def mount(bytes source not None, bytes target not None, bytes kind not None):
    cdef const char *at = target
    cdef const char *what = source
    cdef const char *how = kind
    cdef long ret
    cdef int code
    with nogil:
        ret = syscall(SYS_mount, what, at, how, <long>0, <long>0)
        code = errno
    if ret < 0:
        refuse(code)


def mount_detached(bytes kind not None):
    cdef const char *how = kind
    cdef long context, mounted = -1
    cdef int code
    with nogil:
        context = syscall(SYS_fsopen, how, FSOPEN_CLOEXEC)
        code = errno
        if context >= 0:
            if syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, <long>0) == 0:
                mounted = syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, <long>0)
            code = errno
            close(<int>context)
    if mounted < 0:
        refuse(code)
    return mounted


def bpf_map_lookup(int fd, const uint8_t[::1] key not None, size_t value_bytes):
    cdef bpf_attr attr
    cdef bytes value = PyBytes_FromStringAndSize(NULL, value_bytes)
    memset(&attr, 0, sizeof(attr))
    attr.map_fd = fd
    attr.key = place(key)
    attr.value = room(value)
    bpf(BPF_MAP_LOOKUP_ELEM, &attr)
    return value


def bpf_map_update(int fd, const uint8_t[::1] key not None, const uint8_t[::1] value not None):
    cdef bpf_attr attr
    memset(&attr, 0, sizeof(attr))
    attr.map_fd = fd
    attr.key = place(key)
    attr.value = place(value)
    bpf(BPF_MAP_UPDATE_ELEM, &attr)


def bpf_map_next_key(int fd, const uint8_t[::1] key, size_t key_bytes):
    cdef bpf_attr attr
    cdef bytes after = PyBytes_FromStringAndSize(NULL, key_bytes)
    memset(&attr, 0, sizeof(attr))
    attr.map_fd = fd
    attr.key = place(key)
    attr.next_key = room(after)
    bpf(BPF_MAP_GET_NEXT_KEY, &attr)
    return after


def bpf_map_batch(int fd, const uint8_t[::1] position, size_t key_bytes, size_t value_bytes,
                  uint32_t entries):
    cdef bpf_attr attr
    cdef size_t position_bytes = max(key_bytes, 8)
    cdef bytes after = PyBytes_FromStringAndSize(NULL, position_bytes)
    cdef bytes keys = PyBytes_FromStringAndSize(NULL, entries * key_bytes)
    cdef bytes values = PyBytes_FromStringAndSize(NULL, entries * value_bytes)
    if position is not None and position.shape[0] != position_bytes:
        raise ValueError(f"a position of {position.shape[0]} bytes")
    memset(&attr, 0, sizeof(attr))
    attr.batch.map_fd = fd
    attr.batch.in_batch = place(position)
    attr.batch.out_batch = room(after)
    attr.batch.keys = room(keys)
    attr.batch.values = room(values)
    attr.batch.count = entries
    try:
        bpf(BPF_MAP_LOOKUP_BATCH, &attr)
    except OSError as error:
        if error.errno != ENOENT:
            raise
        after = None
    return keys[:attr.batch.count * key_bytes], values[:attr.batch.count * value_bytes], after


def bpf_next_id(str kind not None, uint32_t after):
    cdef bpf_attr attr
    memset(&attr, 0, sizeof(attr))
    attr.start_id = after
    try:
        bpf(<bpf_cmd><int>NEXT_ID[kind], &attr)
    except OSError as error:
        if error.errno != ENOENT:
            raise
        return None
    return attr.next_id


def bpf_open_id(str kind not None, uint32_t number):
    cdef bpf_attr attr
    memset(&attr, 0, sizeof(attr))
    attr.start_id = number
    return bpf(<bpf_cmd><int>FD_BY_ID[kind], &attr)


def bpf_object_info(int fd, bytes asked not None=b"", arrays=()):
    cdef bpf_attr attr
    cdef uint8_t info[INFO_BYTES]
    cdef list found = []
    cdef uint64_t address
    cdef size_t at, size
    cdef bytes array
    memset(info, 0, sizeof(info))
    memcpy(info, PyBytes_AS_STRING(asked), min(len(asked), INFO_BYTES))
    for at, size in arrays:
        if at > INFO_BYTES - sizeof(address):
            raise ValueError(f"no pointer can be at {at}")
        array = PyBytes_FromStringAndSize(NULL, size)
        memset(PyBytes_AS_STRING(array), 0, size)
        found.append(array)
        address = room(array)
        memcpy(&info[at], &address, sizeof(address))
    memset(&attr, 0, sizeof(attr))
    attr.info.bpf_fd = fd
    attr.info.info_len = INFO_BYTES
    attr.info.info = <uint64_t><size_t>info
    bpf(BPF_OBJ_GET_INFO_BY_FD, &attr)
    return info[:attr.info.info_len], tuple(found)


def bpf_load_program(uint32_t kind, const uint8_t[::1] instructions not None, *,
                     bytes name not None=b"", uint32_t attach_type=0, uint32_t btf_id=0):
    cdef bpf_attr attr
    cdef bytes licence = b"GPL"
    memset(&attr, 0, sizeof(attr))
    attr.prog_type = kind
    attr.insn_cnt = instructions.shape[0] // 8
    attr.insns = place(instructions)
    attr.license = room(licence)
    attr.expected_attach_type = attach_type
    attr.attach_btf_id = btf_id
    memcpy(attr.prog_name, PyBytes_AS_STRING(name), min(len(name), 15))
    return bpf(BPF_PROG_LOAD, &attr)


def bpf_attach_tracing(int program_fd):
    cdef bpf_attr attr
    memset(&attr, 0, sizeof(attr))
    attr.raw_tracepoint.prog_fd = program_fd
    return bpf(BPF_RAW_TRACEPOINT_OPEN, &attr)


def bpf_count_runs():
    cdef bpf_attr attr
    memset(&attr, 0, sizeof(attr))
    attr.enable_stats.type = BPF_STATS_RUN_TIME
    return bpf(BPF_ENABLE_STATS, &attr)
