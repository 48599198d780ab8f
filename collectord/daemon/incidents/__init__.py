# SPDX-License-Identifier: Apache-2.0
"""Triggers are watched, and incidents are made of what was recorded before they fired."""
