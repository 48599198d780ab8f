# SPDX-License-Identifier: Apache-2.0
"""How the daemon is seen and told: HTTP, the service manager, signals."""
