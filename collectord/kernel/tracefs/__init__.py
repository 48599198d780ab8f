# SPDX-License-Identifier: Apache-2.0
"""tracefs: its mount, and instances of it with their rings, events and probes."""
