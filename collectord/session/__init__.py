# SPDX-License-Identifier: Apache-2.0
"""The parts of a running session: counters, rotation, flight recorder and health."""
