# SPDX-License-Identifier: Apache-2.0
"""`python -m collectord` is `collectord`."""

import sys

from collectord.cli import program

sys.exit(program())
