# SPDX-License-Identifier: Apache-2.0
"""BPF: bpf(2), programs as the kernel has them loaded, and the files of the catalogue."""
