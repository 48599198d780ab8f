# SPDX-License-Identifier: Apache-2.0
"""Folders that are held by a descriptor, so that no name leads where somebody else decides.

The program runs with privilege in folders that others may write to. Whoever can change a name
there could put a link, a FIFO or a giant in its place between two calls. So a folder is entered
step by step without following other people's links and held open, every name is one directly in
it, a file is created only where nothing is, and what is opened is looked at before it is used.
"""
