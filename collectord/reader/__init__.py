# SPDX-License-Identifier: Apache-2.0
"""Segments read back: listed, verified, and as events of every format."""
