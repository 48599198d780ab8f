# SPDX-License-Identifier: Apache-2.0
"""Operating-system calls: the port, this kernel (`linux`), and the kernel's files."""
