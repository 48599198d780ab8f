# SPDX-License-Identifier: Apache-2.0
"""collectord: drains every kernel-to-user trace buffer and accounts for each record."""

__version__ = "0.1.0"
