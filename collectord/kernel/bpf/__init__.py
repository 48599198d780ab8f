# SPDX-License-Identifier: Apache-2.0
"""BPF: bpf(2), programs as they are loaded, and the files of the catalogue."""
