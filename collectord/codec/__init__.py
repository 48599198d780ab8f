# SPDX-License-Identifier: Apache-2.0
"""Codecs without I/O: bytes to values and back."""
