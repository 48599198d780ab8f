# SPDX-License-Identifier: Apache-2.0
"""Maps of BPF programs: read in batches, made into metrics and answers."""
