# SPDX-License-Identifier: Apache-2.0
"""Native core: C11 library without Python.h and one thin Cython binding, `_core`."""
