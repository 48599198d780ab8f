# SPDX-License-Identifier: Apache-2.0
"""What a killed process left: segments, rings of ftrace, and notes of them."""
