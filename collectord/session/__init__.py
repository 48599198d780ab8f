# SPDX-License-Identifier: Apache-2.0
"""A running session: its counters, rotation, flight recorder and health."""
