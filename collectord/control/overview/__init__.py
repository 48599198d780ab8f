# SPDX-License-Identifier: Apache-2.0
"""The page on the metrics address: sessions, ledger, rings and losses, as a browser shows them."""
