// SPDX-License-Identifier: Apache-2.0
/*
 * Reads the AUX traces of perf.data segments as the counter words of the test PMU.
 *
 *     aux_words SEGMENT...        segments in their order; of both framings
 *
 * For each ring a line "ring IDX CPU TID PIECES BYTES FIRST END BREAKS": where its first piece
 * begins, where the last one ends, and how many pieces do not follow on the one before. For each
 * CPU whose words are in it a line "words IDX CPU TID OF WORDS FIRST LAST GAPS MISSING DISORDER":
 * numbers of the first and last word, how often and how many are missing between them, and how
 * many are repeated, go back, or are no word of a CPU that exists. Padding words are left out.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RINGS_MAX 256
#define CPUS_MAX 64
#define COUNTER_BITS 56
#define PAD_WORD UINT64_MAX
#define AUXTRACE 71
#define FINISHED_INIT 82
#define PIECE_BYTES 40
#define HEADER_BYTES 8
static const uint64_t hidden_magic = 0x3158554144544f43;

struct record {
    uint32_t type;
    uint16_t misc;
    uint16_t size;
};

struct piece {
    uint64_t size, offset, reference;
    uint32_t idx;
    int32_t tid, cpu;
    uint32_t padding;
};

struct words {
    uint64_t count, first, last, gaps, missing, disorder;
};

struct ring {
    uint32_t idx;
    int32_t cpu, tid;
    uint64_t pieces, bytes, first, end, breaks;
    uint64_t strange; /* words of no CPU */
    struct words of[CPUS_MAX];
};

static struct ring rings[RINGS_MAX];
static unsigned int ring_count;

static _Noreturn void fail(const char *what, const char *path, uint64_t at)
{
    fprintf(stderr, "aux_words: %s: %s at byte %" PRIu64 "\n", path, what, at);
    exit(1);
}

static struct ring *ring_of(const struct piece *piece, const char *path)
{
    for (unsigned int i = 0; i < ring_count; i++)
        if (rings[i].idx == piece->idx && rings[i].cpu == piece->cpu && rings[i].tid == piece->tid)
            return &rings[i];
    if (ring_count == RINGS_MAX)
        fail("too many rings", path, 0);
    struct ring *ring = &rings[ring_count++];
    ring->idx = piece->idx;
    ring->cpu = piece->cpu;
    ring->tid = piece->tid;
    ring->first = ring->end = piece->offset;
    return ring;
}

static void take_words(struct ring *ring, const uint8_t *payload, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word;

        memcpy(&word, payload + at, sizeof(word));
        if (word == PAD_WORD)
            continue;
        const uint64_t cpu = word >> COUNTER_BITS;
        const uint64_t n = word & ((UINT64_C(1) << COUNTER_BITS) - 1);
        if (cpu >= CPUS_MAX) {
            ring->strange++;
            continue;
        }
        struct words *of = &ring->of[cpu];
        if (of->count == 0) {
            of->first = n;
        } else if (n <= of->last) {
            of->disorder++;
            continue;
        } else if (n > of->last + 1) {
            of->gaps++;
            of->missing += n - of->last - 1;
        }
        of->last = n;
        of->count++;
    }
}

static void take_piece(const struct piece *piece, const uint8_t *payload, const char *path,
                       uint64_t at)
{
    const uint64_t bytes = piece->size - piece->padding;
    struct ring *ring = ring_of(piece, path);

    if (bytes % sizeof(uint64_t) != 0)
        fail("a piece that ends inside of a word", path, at);
    if (piece->offset != ring->end)
        ring->breaks++;
    ring->end = piece->offset + bytes;
    ring->pieces++;
    ring->bytes += bytes;
    take_words(ring, payload, bytes);
}

/* Gives the bytes of the record at `at` with what belongs to it. */
static uint64_t take_record(const uint8_t *data, uint64_t at, uint64_t end, const char *path)
{
    struct record record;
    struct piece piece;
    uint64_t magic;

    if (end - at < HEADER_BYTES)
        fail("half a header", path, at);
    memcpy(&record, data + at, sizeof(record));
    if (record.size < HEADER_BYTES || record.size > end - at)
        fail("no record", path, at);
    if (record.type == AUXTRACE) {
        if (record.size < HEADER_BYTES + PIECE_BYTES)
            fail("half an AUXTRACE", path, at);
        memcpy(&piece, data + at + HEADER_BYTES, sizeof(piece));
        if (piece.size > end - at - record.size || piece.padding > piece.size)
            fail("trace beyond the end", path, at);
        take_piece(&piece, data + at + record.size, path, at);
        return record.size + piece.size;
    }
    if (record.type == FINISHED_INIT && record.size >= HEADER_BYTES + 8 + PIECE_BYTES) {
        memcpy(&magic, data + at + HEADER_BYTES, sizeof(magic));
        if (magic == hidden_magic) {
            memcpy(&piece, data + at + HEADER_BYTES + 8, sizeof(piece));
            if (piece.size > record.size - (HEADER_BYTES + 8u + PIECE_BYTES) ||
                piece.padding > piece.size)
                fail("trace beyond its record", path, at);
            take_piece(&piece, data + at + HEADER_BYTES + 8 + PIECE_BYTES, path, at);
        }
    }
    return record.size;
}

static void take_segment(const char *path)
{
    struct stat status;
    uint64_t header[7]; /* magic, size, attr size, attrs, data: struct perf_file_header */
    const int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &status) != 0)
        fail(strerror(errno), path, 0);
    const uint64_t bytes = (uint64_t)status.st_size;
    if (bytes < sizeof(header))
        fail("no perf.data", path, 0);
    const uint8_t *data = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
        fail(strerror(errno), path, 0);
    memcpy(header, data, sizeof(header));
    if (memcmp(data, "PERFILE2", 8) != 0 || header[5] > bytes || header[6] > bytes - header[5])
        fail("no perf.data", path, 0);
    const uint64_t end = header[5] + header[6];
    for (uint64_t at = header[5]; at < end;)
        at += take_record(data, at, end, path);
    munmap((void *)data, bytes);
    close(fd);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        take_segment(argv[i]);
    for (unsigned int i = 0; i < ring_count; i++) {
        const struct ring *ring = &rings[i];
        printf("ring %" PRIu32 " %" PRId32 " %" PRId32 " %" PRIu64 " %" PRIu64 " %" PRIu64
               " %" PRIu64 " %" PRIu64 "\n",
               ring->idx, ring->cpu, ring->tid, ring->pieces, ring->bytes, ring->first, ring->end,
               ring->breaks);
        if (ring->strange != 0)
            printf("strange %" PRIu32 " %" PRIu64 "\n", ring->idx, ring->strange);
        for (unsigned int cpu = 0; cpu < CPUS_MAX; cpu++) {
            const struct words *of = &ring->of[cpu];
            if (of->count == 0)
                continue;
            printf("words %" PRIu32 " %" PRId32 " %" PRId32 " %u %" PRIu64 " %" PRIu64 " %" PRIu64
                   " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                   ring->idx, ring->cpu, ring->tid, cpu, of->count, of->first, of->last, of->gaps,
                   of->missing, of->disorder);
        }
    }
    return 0;
}
