# SPDX-License-Identifier: Apache-2.0
"""Filters (record_filter) of the values that `bpf_struct.decode` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectord.codec.record_filter import array_refusal, number_test, text_test

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from collectord.codec.bpf_struct import Field, Layout, Value
    from collectord.codec.record_filter import Term

    Predicate = Callable[[Mapping[str, Value]], bool]


def bind(terms: Iterable[Term], layout: Layout) -> Predicate:
    """Bind a filter to a layout, which must have all its fields.

    Raises:
        UsageError: a field cannot be compared by this operator, or with this value.
    """
    by_name = {field.name: field for field in layout.fields}
    tests = [(term.field, _test(term, by_name[term.field])) for term in terms]
    return lambda values: all(test(values[name]) for name, test in tests)


def _test(term: Term, field: Field) -> Callable[[Any], bool]:
    if field.kind == "char":
        return text_test(term)
    if field.count or field.kind not in {"int", "uint", "bool"}:
        raise array_refusal(term)
    return number_test(term)
