# SPDX-License-Identifier: Apache-2.0
"""The parts of the kernel's port, carried out in this process."""
