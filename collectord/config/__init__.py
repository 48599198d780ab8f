# SPDX-License-Identifier: Apache-2.0
"""Typed configuration: its keys, its files, and the same values from command line options."""
