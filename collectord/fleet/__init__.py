# SPDX-License-Identifier: Apache-2.0
"""The fleet: what hosts put into an object store, and how it is found there again."""
