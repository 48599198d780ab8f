// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Knobs and counters. /dev/collectord_test_pmu: reading it gives one line for each CPU, writing
 * gives a CPU bytes to produce. The knobs are the module's writable parameters.
 */
#include <linux/cpu.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/smp.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "test_pmu.h"

#define UPLOAD_MAX_BYTES (256ULL << 20)
#define UPLOAD_APPEND 1u

struct knobs knobs = {
	.period_us = 1000,
	.chunk_bytes = 16384,
	.aux_record_bytes = 65536,
	.catch_up_ticks = 1,
	.hw_id_per_cpu = true,
	.running = true,
	.stop_on_full = true,
};

#define KNOB(_name, _type, _text)                            \
	module_param_named(_name, knobs._name, _type, 0644); \
	MODULE_PARM_DESC(_name, _text)

KNOB(period_us, uint, "period of each CPU's timer, at least 20");
KNOB(chunk_bytes, uint, "bytes produced at each tick, whole words, at most 1 MiB");
KNOB(aux_record_bytes, uint, "most bytes in one transaction; 0: up to the watermark");
KNOB(catch_up_ticks, uint, "most ticks that a late timer makes up for");
KNOB(skip_bytes, uint, "bytes of 0xff skipped before each transaction, covered by no record");
KNOB(format_flags, uint, "bits 0xff00 of each AUX record's flags");
KNOB(hw_id, ullong, "AUX_OUTPUT_HW_ID once for each buffer and CPU; 0: none");
KNOB(hw_id_per_cpu, bool, "the number of the CPU is added to hw_id");
KNOB(stop_on_full, bool, "a full buffer raises TRUNCATED; 0: a gap and PARTIAL");
KNOB(flag_full_record, bool, "TRUNCATED on the record that fills the buffer, without a retry");
KNOB(flush_on_stop, bool, "data appear only when the event is stopped, the newest that fit");
KNOB(produce_while_stopped, bool, "a halt for a full buffer counts as lost production");
KNOB(upload, bool, "produce what was uploaded instead of counter words");
KNOB(upload_repeat, bool, "begin the upload again at its end");

static bool device_added;

static void nothing(void *unused)
{
}

/* When the write returns, each CPU's timer has seen it: no tick that began before goes on. */
static int running_set(const char *text, const struct kernel_param *param)
{
	const int err = param_set_bool(text, param);

	if (err == 0 && READ_ONCE(device_added))
		on_each_cpu(nothing, NULL, 1);
	return err;
}

static const struct kernel_param_ops running_ops = {.set = running_set, .get = param_get_bool};

module_param_cb(running, &running_ops, &knobs.running, 0644);
MODULE_PARM_DESC(running, "0: every CPU is silent from the return of the write on");

static int forced_set(const char *text, const struct kernel_param *param)
{
	const int err = param_set_int(text, param);
	const ptrdiff_t flag = (int *)param->arg - knobs.forced;

	if (err == 0)
		WRITE_ONCE(knobs.forced_writes[flag], knobs.forced_writes[flag] + 1);
	return err;
}

static const struct kernel_param_ops forced_ops = {.set = forced_set, .get = param_get_int};

module_param_cb(force_truncated, &forced_ops, &knobs.forced[FORCED_TRUNCATED], 0644);
MODULE_PARM_DESC(force_truncated, "TRUNCATED on every Nth transaction of a CPU; -1: on its next");
module_param_cb(force_partial, &forced_ops, &knobs.forced[FORCED_PARTIAL], 0644);
MODULE_PARM_DESC(force_partial, "likewise PARTIAL");
module_param_cb(force_collision, &forced_ops, &knobs.forced[FORCED_COLLISION], 0644);
MODULE_PARM_DESC(force_collision, "likewise COLLISION");

/* Runs `function` where `trace_cpu` of that CPU may be touched; CPUs stay where they are. */
static void on_cpu(int cpu, smp_call_func_t function, void *info)
{
	if (smp_call_function_single(cpu, function, info, 1) != 0)
		function(info); /* offline: nobody else touches it */
}

struct reading {
	struct trace_cpu *from;
	struct tally tally;
	u64 open_bytes, backlog, counter_bytes, upload_bytes, upload_size, halted_now_ns;
	bool active, halted;
};

static void take_reading(void *info)
{
	struct reading *reading = info;
	const struct trace_cpu *tc = reading->from;

	reading->tally = tc->tally;
	reading->open_bytes = tc->handle.event ? tc->filled : 0;
	reading->backlog = tc->backlog;
	reading->counter_bytes = tc->counter_bytes;
	reading->upload_bytes = tc->upload_bytes;
	reading->upload_size = tc->upload ? tc->upload->bytes : 0;
	reading->active = tc->event && !(tc->event->hw.state & PERF_HES_STOPPED);
	reading->halted = tc->halted_event;
	reading->halted_now_ns = reading->halted ? ktime_get_ns() - tc->halted_at_ns : 0;
}

#define PRINT(_file, _name, _value) seq_printf(_file, " " _name "=%llu", (u64)(_value))

static void print_cpu(struct seq_file *file, int cpu)
{
	struct reading reading = {.from = per_cpu_ptr(&trace_cpu, cpu)};
	const struct tally *tally = &reading.tally;

	on_cpu(cpu, take_reading, &reading);
	seq_printf(file, "cpu=%d", cpu);
	PRINT(file, "active", reading.active);
	PRINT(file, "halted", reading.halted);
	PRINT(file, "next_word", reading.counter_bytes / WORD_BYTES);
	PRINT(file, "produced_bytes", tally->produced_bytes);
	PRINT(file, "written_bytes", tally->written_bytes);
	PRINT(file, "truncated_bytes", tally->truncated_bytes);
	PRINT(file, "skipped_bytes", tally->skipped_bytes);
	PRINT(file, "open_bytes", reading.open_bytes);
	PRINT(file, "backlog_bytes", reading.backlog);
	PRINT(file, "upload_position", reading.upload_bytes);
	PRINT(file, "upload_size", reading.upload_size);
	PRINT(file, "transactions", tally->transactions);
	PRINT(file, "records", tally->records);
	PRINT(file, "begin_failed", tally->begin_failed);
	PRINT(file, "truncated_flags", tally->truncated_flags);
	PRINT(file, "partial_flags", tally->partial_flags);
	PRINT(file, "collision_flags", tally->collision_flags);
	PRINT(file, "starts", tally->starts);
	PRINT(file, "stops", tally->stops);
	PRINT(file, "halts", tally->halts);
	PRINT(file, "halted_ns", tally->halted_ns + reading.halted_now_ns);
	PRINT(file, "pauses", tally->pauses);
	PRINT(file, "resumes", tally->resumes);
	PRINT(file, "filter_syncs", tally->filter_syncs);
	PRINT(file, "ticks", tally->ticks);
	PRINT(file, "missed_ticks", tally->missed_ticks);
	seq_putc(file, '\n');
}

static int counters_show(struct seq_file *file, void *unused)
{
	int cpu;

	cpus_read_lock();
	for_each_possible_cpu(cpu) print_cpu(file, cpu);
	cpus_read_unlock();
	return 0;
}

static int device_open(struct inode *inode, struct file *file)
{
	/* misc_open() leaves the device there, and seq_open() wants it empty. */
	file->private_data = NULL;
	return single_open(file, counters_show, NULL);
}

struct exchange {
	struct trace_cpu *at;
	struct upload *upload;
	bool keep_position;
};

static void exchange_upload(void *info)
{
	struct exchange *exchange = info;

	struct trace_cpu *tc = exchange->at;

	swap(tc->upload, exchange->upload);
	if (exchange->keep_position)
		return;
	tc->upload_bytes = 0;
	if (tc->uploading) {
		/* What it would be written from is gone. */
		tc->tally.truncated_bytes += tc->backlog;
		tc->backlog = 0;
	}
}

struct upload_header {
	__s32 cpu;
	__u32 flags; /* UPLOAD_APPEND */
	__u64 bytes; /* that follow, in the same write */
};

static DEFINE_MUTEX(upload_mutex);

static int replace_upload(const struct upload_header *header, const char __user *data)
{
	struct trace_cpu *tc = per_cpu_ptr(&trace_cpu, header->cpu);
	const bool append = header->flags & UPLOAD_APPEND && tc->upload;
	const u64 kept = append ? tc->upload->bytes : 0;
	struct exchange exchange = {.at = tc, .keep_position = append};
	struct upload *upload;

	if (kept + header->bytes > UPLOAD_MAX_BYTES)
		return -EFBIG;
	upload = vmalloc(sizeof(*upload) + kept + header->bytes);
	if (!upload)
		return -ENOMEM;
	upload->bytes = kept + header->bytes;
	if (kept)
		memcpy(upload->data, tc->upload->data, kept);
	if (copy_from_user(upload->data + kept, data, header->bytes)) {
		vfree(upload);
		return -EFAULT;
	}
	exchange.upload = upload;
	cpus_read_lock();
	on_cpu(header->cpu, exchange_upload, &exchange);
	cpus_read_unlock();
	vfree(exchange.upload); /* the old one, which no tick reads any more */
	return 0;
}

static ssize_t device_write(struct file *file, const char __user *data, size_t bytes, loff_t *at)
{
	struct upload_header header;
	int err;

	if (bytes < sizeof(header))
		return -EINVAL;
	if (copy_from_user(&header, data, sizeof(header)))
		return -EFAULT;
	if (!header.bytes || header.bytes != bytes - sizeof(header))
		return -EINVAL;
	if (header.flags & ~UPLOAD_APPEND)
		return -EINVAL;
	if (header.cpu < 0 || header.cpu >= nr_cpu_ids || !cpu_possible(header.cpu))
		return -ENODEV;
	mutex_lock(&upload_mutex);
	err = replace_upload(&header, data + sizeof(header));
	mutex_unlock(&upload_mutex);
	return err ? err : bytes;
}

static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
	.open = device_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = single_release,
	.write = device_write,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "collectord_test_pmu",
	.fops = &device_operations,
	.mode = 0600,
};

int device__add(void)
{
	const int err = misc_register(&device);

	WRITE_ONCE(device_added, err == 0);
	return err;
}

void device__remove(void)
{
	int cpu;

	misc_deregister(&device);
	for_each_possible_cpu(cpu) vfree(per_cpu_ptr(&trace_cpu, cpu)->upload);
}
