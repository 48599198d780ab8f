# SPDX-License-Identifier: Apache-2.0
"""Text: units, CPU lists, nearest spellings, and foreign text made visible."""
