# SPDX-License-Identifier: Apache-2.0
"""The opener: a small privileged process that opens rings and holds them for its whole life."""
