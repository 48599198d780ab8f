# SPDX-License-Identifier: Apache-2.0
"""What a host can do, as plain data: the kernel package finds it out, and plans read it."""
