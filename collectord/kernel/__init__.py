# SPDX-License-Identifier: Apache-2.0
"""The only operating-system calls: the seam (`port`), this kernel (`linux`), and its files."""
