# SPDX-License-Identifier: Apache-2.0
"""The parts of the kernel's port, one for each kind of thing."""
