# SPDX-License-Identifier: Apache-2.0
"""Probe stage: capabilities of this kernel and user, and the text that `doctor` prints."""
