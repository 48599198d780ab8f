# SPDX-License-Identifier: Apache-2.0
"""Stacks with their weights, and the forms in which viewers read them."""
