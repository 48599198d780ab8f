# SPDX-License-Identifier: Apache-2.0
"""Capabilities of a host as plain data: the kernel package finds them out, and plans read them."""
