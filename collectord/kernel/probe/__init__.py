# SPDX-License-Identifier: Apache-2.0
"""Probe stage: what this kernel and user can do, and what `doctor` prints of it."""
