# SPDX-License-Identifier: Apache-2.0
"""Sans-IO codecs: bytes to values and back."""
