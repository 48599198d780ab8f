# SPDX-License-Identifier: Apache-2.0
"""Folders that are held by a descriptor, so that no name leads to a place that others choose.

The program runs with privilege in folders that others may write to. Whoever can change a name
there could put a link, a FIFO or a giant file in its place between two calls. So a folder is
entered step by step without following other people's links and held open, every name is one
directly in it, a file is created only where nothing exists, and an opened file is checked before
use.
"""
