# SPDX-License-Identifier: Apache-2.0
"""The values that cross the kernel's port, and the readers of such values from a descriptor."""
