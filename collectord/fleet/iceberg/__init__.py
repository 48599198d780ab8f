# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables over the objects of a store, by which other engines find them.

Hosts write none of it: one program registers the objects of committed segments, by pyiceberg.
"""
