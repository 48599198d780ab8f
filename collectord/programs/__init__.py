# SPDX-License-Identifier: Apache-2.0
"""The catalogue of BPF programs: manifests, parameters and source. Nothing here does I/O."""
