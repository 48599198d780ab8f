// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * A relay client: a channel in debugfs whose records are numbered on each CPU, and control files
 * that write, flush, reset, close and open it. Writers of different CPUs run at the same time;
 * whatever replaces or switches buffers from outside has the channel to itself.
 */
#include <linux/cpumask.h>
#include <linux/debugfs.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/relay.h>
#include <linux/rwsem.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>

#define RECORD_MAGIC 0x52544c43u /* "CLTR" in the order of the bytes */
#define HEADER_MAGIC 0x48544c43u /* "CLTH" */
#define RECORD_MIN_BYTES 16u
#define RECORD_MAX_BYTES 65535u
#define BATCH_RECORDS 64u /* written in one cross call, with interrupts off */

/* In front of each record; the rest of its `bytes` follows from `n`. */
struct record {
	u32 magic;
	u16 bytes;
	u16 cpu;
	u64 n;
};

/* What header_bytes reserves at the start of a sub-buffer, as far as it has room for it. */
struct header {
	u32 padding;  /* unused bytes at this sub-buffer's end, known when the next one begins */
	u32 sequence; /* of the sub-buffer, from 0, for each buffer */
	u32 magic;
	u32 cpu;
};

/* Written with interrupts off on the CPU, or by whoever holds the channel alone. */
struct counts {
	u64 next; /* number of the next record; goes on over reset, close and open */
	u64 written;
	u64 written_bytes;
	u64 rejected;	   /* the buffer was full */
	u64 too_big;	   /* longer than a sub-buffer holds */
	u64 padding_bytes; /* of sub-buffers that were left for a next one */
	u64 subbufs;	   /* begun */
	u32 sequence;	   /* of the next one */
};

static char *mode = "no_overwrite";
module_param(mode, charp, 0444);
MODULE_PARM_DESC(mode, "no_overwrite or overwrite");

static char *base = "channel";
module_param(base, charp, 0444);
MODULE_PARM_DESC(base, "name of the files before the CPU's number");

static unsigned int subbuf_size = 4096;
module_param(subbuf_size, uint, 0644);
MODULE_PARM_DESC(subbuf_size, "bytes of a sub-buffer, any number; obeyed by the next open");

static unsigned int n_subbufs = 4;
module_param(n_subbufs, uint, 0644);
MODULE_PARM_DESC(n_subbufs, "sub-buffers of a buffer; obeyed by the next open");

static bool global;
module_param(global, bool, 0644);
MODULE_PARM_DESC(global, "one buffer for all CPUs; obeyed by the next open");

static unsigned int header_bytes;
module_param(header_bytes, uint, 0644);
MODULE_PARM_DESC(header_bytes, "reserved at the start of each sub-buffer; obeyed by the next open");

static unsigned int record_bytes = 32;
module_param(record_bytes, uint, 0644);
MODULE_PARM_DESC(record_bytes, "shortest record, at least 16");

static unsigned int vary;
module_param(vary, uint, 0644);
MODULE_PARM_DESC(vary, "records are longer by up to this many bytes, depending on their number");

static DEFINE_PER_CPU(struct counts, counts);
static DEFINE_RAW_SPINLOCK(global_lock); /* writers of the one buffer, which counts for CPU 0 */
static DECLARE_RWSEM(channel_lock);	 /* shared: write; exclusive: all else */
static struct rchan *channel;
static unsigned int channel_header_bytes;
static bool channel_global;
static bool channel_overwrites;
static struct dentry *folder;

static struct counts *counts_of(int cpu)
{
	return per_cpu_ptr(&counts, channel_global ? 0 : cpu);
}

/* Reserves the header of a sub-buffer and completes the one before it. 0 rejects the record. */
static int subbuf_start(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, size_t prev_padding)
{
	struct counts *counted = counts_of(buf->cpu);
	struct header header = {.magic = HEADER_MAGIC, .cpu = buf->cpu};
	const size_t known = min_t(size_t, channel_header_bytes, sizeof(header));

	if (prev_subbuf && channel_header_bytes >= sizeof(header.padding))
		*(u32 *)prev_subbuf = prev_padding;
	if (!channel_overwrites && relay_buf_full(buf))
		return 0;
	if (prev_subbuf)
		counted->padding_bytes += prev_padding;
	counted->subbufs++;
	header.sequence = counted->sequence++;
	if (channel_header_bytes) {
		memset(subbuf, 0, channel_header_bytes);
		memcpy(subbuf, &header, known);
		subbuf_start_reserve(buf, channel_header_bytes);
	}
	return 1;
}

static struct dentry *create_buf_file(const char *filename, struct dentry *parent,
				      umode_t file_mode, struct rchan_buf *buf, int *is_global)
{
	*is_global = channel_global;
	return debugfs_create_file(filename, file_mode, parent, buf, &relay_file_operations);
}

static int remove_buf_file(struct dentry *dentry)
{
	debugfs_remove(dentry);
	return 0;
}

static const struct rchan_callbacks callbacks = {
	.subbuf_start = subbuf_start,
	.create_buf_file = create_buf_file,
	.remove_buf_file = remove_buf_file,
};

static u32 length_of(u64 n)
{
	const u32 shortest = clamp(READ_ONCE(record_bytes), RECORD_MIN_BYTES, RECORD_MAX_BYTES);
	const u32 more = READ_ONCE(vary);

	/* An odd stride visits every length. */
	return min(shortest + (u32)((n * 7919) % ((u64)more + 1)), RECORD_MAX_BYTES);
}

static void write_record(struct counts *counted, int cpu)
{
	const struct record record = {
		.magic = RECORD_MAGIC,
		.bytes = length_of(counted->next),
		.cpu = cpu,
		.n = counted->next,
	};
	u8 *to = relay_reserve(channel, record.bytes);
	u32 i;

	counted->next++;
	if (!to) {
		if (record.bytes + channel_header_bytes > channel->subbuf_size)
			counted->too_big++;
		else
			counted->rejected++;
		return;
	}
	memcpy(to, &record, sizeof(record));
	for (i = sizeof(record); i < record.bytes; i++)
		to[i] = (u8)(record.n * 31 + i);
	counted->written++;
	counted->written_bytes += record.bytes;
}

/* Interrupts are off: this is a cross call. */
static void write_batch(void *info)
{
	const unsigned int *records = info;
	const int cpu = smp_processor_id();
	unsigned int i;

	if (channel_global)
		raw_spin_lock(&global_lock);
	for (i = 0; i < *records; i++)
		write_record(counts_of(cpu), cpu);
	if (channel_global)
		raw_spin_unlock(&global_lock);
}

static int write_records(int cpu, u64 records)
{
	unsigned int batch;
	int err = 0;

	while (records && !err) {
		batch = min_t(u64, records, BATCH_RECORDS);
		down_read(&channel_lock);
		err = channel ? smp_call_function_single(cpu, write_batch, &batch, 1) : -ENOTCONN;
		up_read(&channel_lock);
		records -= batch;
		if (!err && signal_pending(current))
			err = -EINTR;
		cond_resched();
	}
	return err;
}

static int open_channel(void)
{
	if (channel)
		return -EEXIST;
	if (header_bytes && header_bytes + 1 >= subbuf_size)
		return -EINVAL;
	channel_header_bytes = header_bytes;
	channel_global = global;
	channel = relay_open(base, folder, subbuf_size, n_subbufs, &callbacks, NULL);
	return channel ? 0 : -ENOMEM;
}

static void close_channel(void)
{
	/* Readers that have the files open keep the buffers, but debugfs lets them read no more. */
	relay_close(channel);
	channel = NULL;
}

/* --- control files --- */

static ssize_t write_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	unsigned long long records;
	char text[64];
	int cpu, err;

	if (bytes >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, bytes))
		return -EFAULT;
	text[bytes] = '\0';
	if (sscanf(text, "%d %llu", &cpu, &records) != 2)
		return -EINVAL;
	if (cpu < 0 || cpu >= nr_cpu_ids || !cpu_possible(cpu))
		return -ENODEV;
	err = write_records(cpu, records);
	return err ? err : bytes;
}

/*
 * What relay_close() does before it removes the files. Files in debugfs can't be read once they
 * are removed, so that a reader sees the end and the rest of the data only here.
 */
static void finalize_channel(void)
{
	struct rchan_buf *buf;
	int cpu;

	for_each_possible_cpu(cpu)
	{
		buf = *per_cpu_ptr(channel->buf, cpu);
		if (buf)
			buf->finalized = 1;
	}
}

enum command {
	COMMAND_FLUSH,
	COMMAND_RESET,
	COMMAND_FINALIZE,
	COMMAND_CLOSE,
	COMMAND_OPEN,
};

static int obey(enum command command)
{
	if (command == COMMAND_OPEN)
		return open_channel();
	if (!channel)
		return -ENOTCONN;
	if (command == COMMAND_FLUSH)
		relay_flush(channel);
	else if (command == COMMAND_RESET)
		relay_reset(channel);
	else if (command == COMMAND_FINALIZE)
		finalize_channel();
	else
		close_channel();
	return 0;
}

/* Whatever is written to one of these files means the same. */
static ssize_t command_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	int err;

	down_write(&channel_lock);
	err = obey((enum command)(uintptr_t)file_inode(file)->i_private);
	up_write(&channel_lock);
	return err ? err : bytes;
}

static void print_counts(struct seq_file *file, int cpu)
{
	const struct counts *counted = per_cpu_ptr(&counts, cpu);
	const struct rchan_buf *buf = channel ? *per_cpu_ptr(channel->buf, cpu) : NULL;

	seq_printf(file, "cpu=%d open=%d next=%llu written=%llu written_bytes=%llu", cpu,
		   buf != NULL, counted->next, counted->written, counted->written_bytes);
	seq_printf(file, " rejected=%llu too_big=%llu padding_bytes=%llu subbufs=%llu",
		   counted->rejected, counted->too_big, counted->padding_bytes, counted->subbufs);
	seq_printf(file, " produced=%zu consumed=%zu offset=%zu\n", buf ? buf->subbufs_produced : 0,
		   buf ? buf->subbufs_consumed : 0, buf ? buf->offset : 0);
}

static int counts_show(struct seq_file *file, void *unused)
{
	int cpu;

	/* No writer is at work, so the figures belong together. */
	down_write(&channel_lock);
	for_each_possible_cpu(cpu)
	{
		if (cpu == 0 || !channel_global)
			print_counts(file, cpu);
	}
	up_write(&channel_lock);
	return 0;
}

DEFINE_SHOW_ATTRIBUTE(counts);

static const struct file_operations write_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = write_write,
};

static const struct file_operations command_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = command_write,
};

static void add_command(const char *name, struct dentry *ctl, enum command command)
{
	debugfs_create_file(name, 0200, ctl, (void *)(uintptr_t)command, &command_fops);
}

static int __init test_relay_init(void)
{
	struct dentry *ctl;
	int err;

	channel_overwrites = strcmp(mode, "overwrite") == 0;
	if (!channel_overwrites && strcmp(mode, "no_overwrite") != 0)
		return -EINVAL;
	folder = debugfs_create_dir("collectord_relay", NULL);
	if (IS_ERR(folder))
		return PTR_ERR(folder);
	err = open_channel();
	if (err) {
		debugfs_remove(folder);
		return err;
	}
	ctl = debugfs_create_dir("ctl", folder);
	debugfs_create_file("write", 0200, ctl, NULL, &write_fops);
	debugfs_create_file("counts", 0400, ctl, NULL, &counts_fops);
	add_command("flush", ctl, COMMAND_FLUSH);
	add_command("reset", ctl, COMMAND_RESET);
	add_command("finalize", ctl, COMMAND_FINALIZE);
	add_command("close", ctl, COMMAND_CLOSE);
	add_command("open", ctl, COMMAND_OPEN);
	return 0;
}

static void __exit test_relay_exit(void)
{
	/* debugfs waits for whoever is in one of these operations. */
	debugfs_lookup_and_remove("ctl", folder);
	if (channel)
		close_channel();
	debugfs_remove(folder);
}

module_init(test_relay_init);
module_exit(test_relay_exit);
MODULE_DESCRIPTION("Relay channel with numbered records, for tests");
MODULE_LICENSE("GPL");
