// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The PMU: how its events are opened, scheduled, paused and filtered. */
#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "test_pmu.h"

DEFINE_PER_CPU(struct trace_cpu, trace_cpu);

struct identity identity = {.name = "collectord_test", .nr_addr_filters = 4};

static char *name = "collectord_test";
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "name of the PMU; intel_pt, cs_etm and arm_spe* get their sysfs files");

static char *head = "auto";
module_param(head, charp, 0444);
MODULE_PARM_DESC(head, "aux_head in overwrite mode: monotonic, offset, whole, or auto by the name");

static int count_bytes = -1;
module_param(count_bytes, int, 0444);
MODULE_PARM_DESC(count_bytes, "the event's count is the bytes produced; -1: for the plain name");

static bool aux_pause = true;
module_param(aux_pause, bool, 0444);
MODULE_PARM_DESC(aux_pause, "other events may pause and resume it, where the kernel has that");

module_param_named(nr_addr_filters, identity.nr_addr_filters, uint, 0444);
MODULE_PARM_DESC(nr_addr_filters, "address filters an event may have, 0 to 8");

static void *setup_aux(struct perf_event *event, void **pages, int nr_pages, bool overwrite)
{
	struct trace_buffer *buffer = kzalloc(sizeof(*buffer), GFP_KERNEL);

	if (!buffer)
		return NULL;
	buffer->pages = pages;
	buffer->bytes = (u64)nr_pages << PAGE_SHIFT;
	buffer->overwrite = overwrite;
	return buffer;
}

static void free_aux(void *aux)
{
	kfree(aux);
}

static void event_start(struct perf_event *event, int flags)
{
	struct trace_cpu *tc = this_cpu_ptr(&trace_cpu);

#ifdef PERF_EF_RESUME
	if (flags & PERF_EF_RESUME) {
		/* The timer looks at hw.aux_paused, which is 0 by now. */
		this_cpu_inc(trace_cpu.tally.resumes);
		return;
	}
#endif
	if (WARN_ON_ONCE(tc->event != event) || !(event->hw.state & PERF_HES_STOPPED))
		return;
	perf_event_addr_filters_sync(event);
	if (!producer__start(tc))
		return;
	event->hw.state = 0;
	tc->tally.starts++;
	/* An Intel PT event announces itself once, the others at each scheduling in. */
	if (identity.kind == KIND_INTEL_PT)
		event->attach_state |= PERF_ATTACH_ITRACE;
}

static void event_stop(struct perf_event *event, int flags)
{
	struct trace_cpu *tc = this_cpu_ptr(&trace_cpu);

#ifdef PERF_EF_PAUSE
	if (flags & PERF_EF_PAUSE) {
		this_cpu_inc(trace_cpu.tally.pauses);
		return;
	}
#endif
	if (WARN_ON_ONCE(tc->event != event) || event->hw.state & PERF_HES_STOPPED)
		return;
	event->hw.state |= PERF_HES_STOPPED | PERF_HES_UPTODATE;
	producer__stop(tc);
	tc->tally.stops++;
}

static int event_add(struct perf_event *event, int flags)
{
	struct trace_cpu *tc = this_cpu_ptr(&trace_cpu);

	if (tc->event)
		return -EBUSY;
	tc->event = event;
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	if (!(flags & PERF_EF_START))
		return 0;
	event_start(event, 0);
	if (!(event->hw.state & PERF_HES_STOPPED))
		return 0;
	tc->event = NULL;
	return -EINVAL;
}

static void event_del(struct perf_event *event, int flags)
{
	event_stop(event, PERF_EF_UPDATE);
	this_cpu_ptr(&trace_cpu)->event = NULL;
}

/* The count, where there is one, is kept up to date at each tick. */
static void event_read(struct perf_event *event)
{
}

/* The event is on no CPU any more; its address may belong to another one soon. */
static void event_destroy(struct perf_event *event)
{
	int cpu;

	for_each_possible_cpu(cpu) cmpxchg(&per_cpu_ptr(&trace_cpu, cpu)->halted_event, event, NULL);
}

static int event_init(struct perf_event *event)
{
	if (event->attr.type != test_pmu.type)
		return -ENOENT;
	if (event->cpu >= 0 && !cpu_possible(event->cpu))
		return -ENODEV;
	/* A period is accepted, as the real ones do: perf sets 1. A frequency is not. */
	if (event->attr.freq)
		return -EINVAL;
	event->destroy = event_destroy;
	return 0;
}

static int addr_filters_validate(struct list_head *filters)
{
	struct perf_addr_filter *filter;
	bool ranges = false, points = false;
	unsigned int count = 0;

	list_for_each_entry(filter, filters, entry)
	{
		const bool is_range = filter->action == PERF_ADDR_FILTER_ACTION_FILTER;

		if (++count > identity.nr_addr_filters)
			return -EOPNOTSUPP;
		ranges |= filter->size != 0;
		points |= filter->size == 0;
		switch (identity.kind) {
		case KIND_INTEL_PT: /* ranges to trace in and to stop at */
			if (!filter->size || filter->action == PERF_ADDR_FILTER_ACTION_START)
				return -EOPNOTSUPP;
			break;
		case KIND_CS_ETM: /* either ranges or start and stop addresses */
			if ((filter->size && !is_range) || (ranges && points))
				return -EOPNOTSUPP;
			break;
		default:
			break;
		}
	}
	return 0;
}

/* Called with the filters' lock held. What is set is only remembered. */
static void addr_filters_sync(struct perf_event *event)
{
	struct trace_cpu *tc = this_cpu_ptr(&trace_cpu);
	const struct perf_addr_filter_range *range = event->addr_filter_ranges;
	struct perf_addr_filter *filter;
	unsigned int count = 0;

	list_for_each_entry(filter, &perf_event_addr_filters(event)->list, entry)
	{
		if (count == min_t(unsigned int, identity.nr_addr_filters, FILTERS_MAX))
			break;
		tc->filters[count].action = filter->action;
		tc->filters[count].start = range[count].start;
		tc->filters[count].bytes = range[count].size;
		count++;
	}
	tc->nr_filters = count;
	tc->tally.filter_syncs++;
}

struct pmu test_pmu = {
	.module = THIS_MODULE,
	.task_ctx_nr = perf_sw_context,
	.capabilities = PERF_PMU_CAP_EXCLUSIVE | PERF_PMU_CAP_ITRACE
#ifdef PERF_PMU_CAP_AUX_PAUSE
			| PERF_PMU_CAP_AUX_PAUSE
#endif
	,
	.event_init = event_init,
	.add = event_add,
	.del = event_del,
	.start = event_start,
	.stop = event_stop,
	.read = event_read,
	.setup_aux = setup_aux,
	.free_aux = free_aux,
};

static enum kind kind_of(const char *pmu_name)
{
	if (strcmp(pmu_name, "intel_pt") == 0)
		return KIND_INTEL_PT;
	if (strcmp(pmu_name, "cs_etm") == 0)
		return KIND_CS_ETM;
	if (strncmp(pmu_name, "arm_spe", strlen("arm_spe")) == 0)
		return KIND_ARM_SPE;
	return KIND_GENERIC;
}

static int head_rule_of(const char *rule, enum kind kind)
{
	if (strcmp(rule, "monotonic") == 0)
		return HEAD_MONOTONIC;
	if (strcmp(rule, "offset") == 0)
		return HEAD_OFFSET;
	if (strcmp(rule, "whole") == 0)
		return HEAD_WHOLE;
	if (strcmp(rule, "auto") != 0)
		return -EINVAL;
	if (kind == KIND_INTEL_PT)
		return HEAD_WHOLE;
	return kind == KIND_ARM_SPE ? HEAD_OFFSET : HEAD_MONOTONIC;
}

static int identify(void)
{
	const enum kind kind = kind_of(name);
	const int rule = head_rule_of(head, kind);

	if (rule < 0 || identity.nr_addr_filters > FILTERS_MAX)
		return -EINVAL;
	identity.name = name;
	identity.kind = kind;
	identity.head = rule;
	identity.count_bytes = count_bytes < 0 ? kind == KIND_GENERIC : count_bytes != 0;
	return 0;
}

static int __init test_pmu_init(void)
{
	int cpu, err;

	err = identify();
	if (err)
		return err;
#ifdef PERF_PMU_CAP_AUX_PAUSE
	if (!aux_pause)
		test_pmu.capabilities &= ~PERF_PMU_CAP_AUX_PAUSE;
#endif
	for_each_possible_cpu(cpu)
	{
		struct hrtimer *timer = &per_cpu_ptr(&trace_cpu, cpu)->timer;

		hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
		timer->function = producer__tick;
	}
	err = device__add();
	if (err)
		return err;
	test_pmu.attr_groups = describe__groups();
	test_pmu.nr_addr_filters = identity.nr_addr_filters;
	if (test_pmu.nr_addr_filters) {
		test_pmu.addr_filters_validate = addr_filters_validate;
		test_pmu.addr_filters_sync = addr_filters_sync;
	}
	err = perf_pmu_register(&test_pmu, identity.name, -1);
	if (err)
		goto no_pmu;
	err = describe__add(&test_pmu);
	if (err)
		goto no_files;
	return 0;

no_files:
	perf_pmu_unregister(&test_pmu);
no_pmu:
	device__remove();
	return err;
}

/* Every open event holds a reference to the module, so no timer runs here. */
static void __exit test_pmu_exit(void)
{
	describe__remove();
	perf_pmu_unregister(&test_pmu);
	device__remove();
}

module_init(test_pmu_init);
module_exit(test_pmu_exit);
MODULE_DESCRIPTION("PMU that writes counter words into AUX buffers, for tests");
MODULE_LICENSE("GPL");
