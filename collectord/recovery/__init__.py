# SPDX-License-Identifier: Apache-2.0
"""Recovery of what a killed process left: segments, rings of ftrace, and notes about them."""
