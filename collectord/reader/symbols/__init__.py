# SPDX-License-Identifier: Apache-2.0
"""Names of addresses: which file was mapped there, and which function is at that place of it."""
