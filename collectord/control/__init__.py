# SPDX-License-Identifier: Apache-2.0
"""The interfaces that show and control the daemon: HTTP, the service manager, signals."""
