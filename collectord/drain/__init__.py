# SPDX-License-Identifier: Apache-2.0
"""Drain stage: the native core on the event loop."""
