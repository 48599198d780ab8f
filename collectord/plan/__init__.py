# SPDX-License-Identifier: Apache-2.0
"""Pure planning: configuration and kernel facts to a plan of what will be opened."""
