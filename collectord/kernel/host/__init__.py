# SPDX-License-Identifier: Apache-2.0
"""This host: its CPUs, PMUs, clocks, tasks and names, from procfs, sysfs and system calls."""
