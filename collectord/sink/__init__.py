# SPDX-License-Identifier: Apache-2.0
"""Sinks: files for the writer, sealed, bounded, repaired and verified."""
