# SPDX-License-Identifier: Apache-2.0
"""The ledger: counters become a balance, and a balance becomes JSON."""
