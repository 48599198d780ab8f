# SPDX-License-Identifier: Apache-2.0
"""Relay channels: their files below debugfs, and blktrace, which creates some."""
