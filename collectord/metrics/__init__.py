# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics, read at scrape time."""
