/* SPDX-License-Identifier: Apache-2.0 */
#include "slot_ring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Map an array of BPF, which begins at a page and has whole pages. */
static int map_array(struct map_part *part, int fd, uint64_t bytes)
{
	const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	const uint64_t whole = (bytes + page_bytes - 1) / page_bytes * page_bytes;
	void *const at = mmap(NULL, (size_t)whole, PROT_READ, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		return -errno;
	*part = (struct map_part){at, (size_t)whole};
	return 0;
}

int slot_map__init(struct slot_map *map, int heads_fd, int slots_fd, uint32_t cpus,
		   uint32_t slots_each)
{
	int ret;

	*map = (struct slot_map){.cpus = cpus, .slots_each = slots_each};
	if (cpus == 0 || slots_each == 0 || (slots_each & (slots_each - 1)) != 0 ||
	    slots_each > SLOTS_EACH_MAX || slots_each > UINT32_MAX / cpus)
		return -EINVAL;
	ret = map_array(&map->parts[0], heads_fd, (uint64_t)cpus * sizeof(struct slot_head));
	if (ret == 0)
		ret = map_array(&map->parts[1], slots_fd,
				(uint64_t)cpus * slots_each * sizeof(struct slot));
	if (ret < 0) {
		slot_map__deinit(map);
		return ret;
	}
	map->heads = map->parts[0].at;
	map->slots = map->parts[1].at;
	return 0;
}

void slot_map__deinit(struct slot_map *map)
{
	for (int i = 0; i < 2; i++)
		if (map->parts[i].at != NULL)
			munmap(map->parts[i].at, map->parts[i].bytes);
	memset(map, 0, sizeof(*map));
}

void slot_map__read(const struct slot_map *map, uint32_t cpu, uint64_t *records, uint64_t *missed)
{
	*missed = __atomic_load_n(&map->heads[cpu].missed, __ATOMIC_ACQUIRE);
	*records = __atomic_load_n(&map->heads[cpu].records, __ATOMIC_ACQUIRE);
}
