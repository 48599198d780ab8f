# SPDX-License-Identifier: Apache-2.0
"""Pure planning: configuration and kernel facts to what will be opened."""
