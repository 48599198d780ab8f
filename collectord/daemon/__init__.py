# SPDX-License-Identifier: Apache-2.0
"""The main path: load, probe, plan, open, drain, sink, close."""
