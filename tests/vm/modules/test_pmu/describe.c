// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * What /sys/bus/event_source/devices/NAME says: for the names of real AUX PMUs the files that
 * their drivers have, with the values of a plausible machine.
 */
#include <linux/cpumask.h>
#include <linux/device.h>
#include <linux/kobject.h>
#include <linux/sysfs.h>

#include "test_pmu.h"

static ssize_t text_show(struct device *dev, struct device_attribute *attr, char *page)
{
	const struct dev_ext_attribute *text = container_of(attr, struct dev_ext_attribute, attr);

	return sysfs_emit(page, "%s\n", (const char *)text->var);
}

#define TEXT(_name, _text)                                                                  \
	(&((struct dev_ext_attribute[]){                                                    \
		{.attr = __ATTR(_name, 0444, text_show, NULL), .var = (void *)(_text)}})[0] \
		  .attr.attr)

/* The same in a folder that is no device. */
struct folder_text {
	struct kobj_attribute attr;
	const char *text;
};

static ssize_t folder_text_show(struct kobject *folder, struct kobj_attribute *attr, char *page)
{
	return sysfs_emit(page, "%s\n", container_of(attr, struct folder_text, attr)->text);
}

#define FOLDER_TEXT(_name, _text)                                                           \
	(&((struct folder_text[]){                                                          \
		{.attr = __ATTR(_name, 0444, folder_text_show, NULL), .text = (_text)}})[0] \
		  .attr.attr)

#define GROUP(_variable, _name, ...)                                             \
	static struct attribute *_variable##_attributes[] = {__VA_ARGS__, NULL}; \
	static const struct attribute_group _variable = {                        \
		.name = _name,                                                   \
		.attrs = _variable##_attributes,                                 \
	}

/* The filters that each CPU was last started with, one a line. */
static ssize_t filters_show(struct device *dev, struct device_attribute *attr, char *page)
{
	static const char *const actions[] = {
		[PERF_ADDR_FILTER_ACTION_STOP] = "stop",
		[PERF_ADDR_FILTER_ACTION_START] = "start",
		[PERF_ADDR_FILTER_ACTION_FILTER] = "filter",
	};
	ssize_t length = 0;
	unsigned int i;
	int cpu;

	for_each_possible_cpu(cpu)
	{
		const struct trace_cpu *tc = per_cpu_ptr(&trace_cpu, cpu);

		for (i = 0; i < READ_ONCE(tc->nr_filters); i++) {
			const struct recorded_filter *filter = &tc->filters[i];

			length += sysfs_emit_at(page, length, "%d %s %#llx-%#llx\n", cpu,
						actions[filter->action], filter->start,
						filter->start + filter->bytes);
		}
	}
	return length;
}

static DEVICE_ATTR_RO(filters);

GROUP(test_files, NULL, &dev_attr_filters.attr);

/* --- the plain PMU --- */

GROUP(generic_format, "format", TEXT(mode, "config:0-7"), TEXT(variant, "config1:0-63"));
GROUP(generic_events, "events", TEXT(trace, "mode=0x1"), TEXT(trace.unit, "bytes"),
      TEXT(trace.scale, "1"));

static const struct attribute_group *generic_groups[] = {
	&test_files,
	&generic_format,
	&generic_events,
	NULL,
};

/* --- intel_pt: bits of IA32_RTIT_CTL; capabilities are in hexadecimal --- */

GROUP(pt_format, "format", TEXT(pt, "config:0"), TEXT(cyc, "config:1"), TEXT(pwr_evt, "config:4"),
      TEXT(fup_on_ptw, "config:5"), TEXT(mtc, "config:9"), TEXT(tsc, "config:10"),
      TEXT(noretcomp, "config:11"), TEXT(ptw, "config:12"), TEXT(branch, "config:13"),
      TEXT(mtc_period, "config:14-17"), TEXT(cyc_thresh, "config:19-22"),
      TEXT(psb_period, "config:24-27"), TEXT(event, "config:31"), TEXT(notnt, "config:55"));
/* The real driver has as many filters as the machine has ranges. */
static ssize_t num_address_ranges_show(struct device *dev, struct device_attribute *attr, char *page)
{
	return sysfs_emit(page, "%x\n", identity.nr_addr_filters);
}

static DEVICE_ATTR_RO(num_address_ranges);

GROUP(pt_caps, "caps", &dev_attr_num_address_ranges.attr, TEXT(max_subleaf, "1"),
      TEXT(cr3_filtering, "1"), TEXT(psb_cyc, "1"), TEXT(ip_filtering, "1"), TEXT(mtc, "1"),
      TEXT(ptwrite, "1"), TEXT(power_event_trace, "1"), TEXT(event_trace, "0"),
      TEXT(tnt_disable, "0"), TEXT(topa_output, "1"), TEXT(topa_multiple_entries, "1"),
      TEXT(single_range_output, "1"), TEXT(output_subsys, "0"), TEXT(payloads_lip, "0"),
      TEXT(mtc_periods, "249"), TEXT(cycle_thresholds, "3fff"), TEXT(psb_periods, "3f"));
GROUP(pt_timing, NULL, TEXT(max_nonturbo_ratio, "24"), TEXT(tsc_art_ratio, "192:2"));

static const struct attribute_group *pt_groups[] = {
	&test_files, &pt_format, &pt_caps, &pt_timing, NULL,
};

/* --- arm_spe --- */

static ssize_t cpumask_show(struct device *dev, struct device_attribute *attr, char *page)
{
	return cpumap_print_to_pagebuf(true, page, cpu_possible_mask);
}

static DEVICE_ATTR_RO(cpumask);

GROUP(spe_files, NULL, &dev_attr_cpumask.attr);
GROUP(spe_format, "format", TEXT(ts_enable, "config:0"), TEXT(pa_enable, "config:1"),
      TEXT(pct_enable, "config:2"), TEXT(jitter, "config:16"), TEXT(branch_filter, "config:32"),
      TEXT(load_filter, "config:33"), TEXT(store_filter, "config:34"),
      TEXT(event_filter, "config1:0-63"), TEXT(min_latency, "config2:0-11"),
      TEXT(inv_event_filter, "config3:0-63"));
GROUP(spe_caps, "caps", TEXT(arch_inst, "0"), TEXT(ernd, "1"), TEXT(count_size, "12"),
      TEXT(min_interval, "1024"));

static const struct attribute_group *spe_groups[] = {
	&test_files, &spe_files, &spe_format, &spe_caps, NULL,
};

/* --- cs_etm: options of the driver, sinks by hash, and a folder for each CPU's ETMv4 --- */

GROUP(etm_format, "format", TEXT(branch_broadcast, "config:8"), TEXT(cycacc, "config:12"),
      TEXT(contextid, "config:14"), TEXT(contextid1, "config:14"), TEXT(contextid2, "config:15"),
      TEXT(timestamp, "config:28"), TEXT(retstack, "config:29"), TEXT(preset, "config:0-3"),
      TEXT(sinkid, "config2:0-31"), TEXT(configid, "config2:32-63"),
      TEXT(cc_threshold, "config3:0-11"));
GROUP(etm_sinks, "sinks", TEXT(tmc_etr0, "0x3d1f3c07"), TEXT(tmc_etf0, "0x2b7a91e5"));

static const struct attribute_group *etm_groups[] = {
	&test_files,
	&etm_format,
	&etm_sinks,
	NULL,
};

GROUP(etm_trcidr, "trcidr", FOLDER_TEXT(trcidr0, "0x28000ea1"), FOLDER_TEXT(trcidr1, "0x4100f424"),
      FOLDER_TEXT(trcidr2, "0x20001088"), FOLDER_TEXT(trcidr3, "0xd7b0004"),
      FOLDER_TEXT(trcidr4, "0x11170004"), FOLDER_TEXT(trcidr5, "0x28c7081e"),
      FOLDER_TEXT(trcidr8, "0x0"), FOLDER_TEXT(trcidr9, "0x0"), FOLDER_TEXT(trcidr10, "0x0"),
      FOLDER_TEXT(trcidr11, "0x0"), FOLDER_TEXT(trcidr12, "0x0"), FOLDER_TEXT(trcidr13, "0x0"));
GROUP(etm_mgmt, "mgmt", FOLDER_TEXT(trcauthstatus, "0xcc"), FOLDER_TEXT(trcconfig, "0xc1"),
      FOLDER_TEXT(trcdevid, "0x0"), FOLDER_TEXT(trcdevarch, "0x0"), FOLDER_TEXT(trcdevtype, "0x13"));
GROUP(etm_source, NULL, FOLDER_TEXT(ts_source, "1"));

static const struct attribute_group *etm_cpu_groups[] = {
	&etm_trcidr,
	&etm_mgmt,
	&etm_source,
	NULL,
};

static struct kobject *etm_cpus[NR_CPUS];

/* A real cpuN is a link to the ETM's device. */
static int add_etm_cpus(struct pmu *pmu)
{
	int cpu, err;

	for_each_possible_cpu(cpu)
	{
		char folder[16];

		snprintf(folder, sizeof(folder), "cpu%d", cpu);
		etm_cpus[cpu] = kobject_create_and_add(folder, &pmu->dev->kobj);
		if (!etm_cpus[cpu])
			return -ENOMEM;
		err = sysfs_create_groups(etm_cpus[cpu], etm_cpu_groups);
		if (err)
			return err;
	}
	return 0;
}

const struct attribute_group **describe__groups(void)
{
	switch (identity.kind) {
	case KIND_INTEL_PT:
		return pt_groups;
	case KIND_CS_ETM:
		return etm_groups;
	case KIND_ARM_SPE:
		return spe_groups;
	default:
		return generic_groups;
	}
}

/* Files that no attribute group can give. */
int describe__add(struct pmu *pmu)
{
	int err = 0;

	if (identity.kind == KIND_CS_ETM)
		err = add_etm_cpus(pmu);
	if (err)
		describe__remove();
	return err;
}

void describe__remove(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
	{
		/* The last reference takes the folder's files with it. */
		kobject_put(etm_cpus[cpu]);
		etm_cpus[cpu] = NULL;
	}
}
