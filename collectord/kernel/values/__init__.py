# SPDX-License-Identifier: Apache-2.0
"""What crosses the kernel's port: values, and what reads them from a descriptor."""
