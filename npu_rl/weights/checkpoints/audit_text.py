"""The report of an audit as text, from the document of `--json`."""

from __future__ import annotations

from typing import Any

_SHOWN = 5  # differences and names; --json has more
_STATES = {
    "equal": "equal, bit for bit (or in value where the dtypes differ)",
    "cast": "equal after the cast from FP8",
    "rounded": "equal after rounding to the narrower dtype",
    "different": "different",
    "shape": "of another shape",
    "copies": "further copies, equal",
    "different_copies": "further copies, different",
}
_SIDES = {
    "only_in_a": "tensors only in A",
    "only_in_b": "tensors only in B",
    "unknown_in_a": "tensors of A that the model does not have",
    "unknown_in_b": "tensors of B that the model does not have",
    "mtp_only_in_a": "tensors of multi-token prediction, only in A",
    "mtp_only_in_b": "tensors of multi-token prediction, only in B",
}


def audit_text(content: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = [f"{side.upper()}: {_side(content[side])}" for side in ("a", "b")]
    for state, text in _STATES.items():
        if state in content["counts"]:
            of = content["counts"][state]
            lines.append(f"  {of['tensors']:>8,} tensors, {of['values']:>15,} values: {text}")
    lines += map(_difference, content["differences"][:_SHOWN])
    if content["differences_in_all"] > _SHOWN:
        lines.append(f"  and {content['differences_in_all'] - _SHOWN} more tensors that differ (--json)")
    lines += map(_not_finite, content["not_finite"][:_SHOWN])
    if content["not_finite_in_all"]["tensors"] > _SHOWN:
        more = content["not_finite_in_all"]["tensors"] - _SHOWN
        lines.append(f"  and {more} more tensors with NaN or infinity (--json)")
    for name, text in _SIDES.items():
        if content[name]:
            count, shown = content["one_sided_in_all"][name], content[name][:_SHOWN]
            rest = f" and {count - len(shown)} more" if count > len(shown) else ""
            lines.append(f"  {count} {text}: {', '.join(shown)}{rest}")
    compared = (
        f"{content['compared']['tensors']:,} tensors, {content['compared']['values']:,} values compared"
    )
    lines.append(f"{content['result'].capitalize()}: {compared} in {content['seconds']:.1f} s.")
    return "\n".join(lines) + "\n"


def _side(of: dict[str, Any]) -> str:
    fp8 = f", {of['fp8_tensors']:,} of them in FP8" if of["fp8_tensors"] else ""
    return f"{of['path']} ({of['format']}): {of['tensors']:,} tensors{fp8}, {of['values']:,} values"


def _not_finite(of: dict[str, Any]) -> str:
    place = f"{of['tensor']}[{', '.join(map(str, of['index']))}]"
    count = f"{of['values']:,} values are NaN or infinite"
    return f"  {place}: {of['side'].upper()} has {of['value']} ({of['where']}); {count}"


def _difference(of: dict[str, Any]) -> str:
    a, b = of["a"], of["b"]
    if "value" not in a:
        return f"  {of['tensor']}: A is {a['shape']}, B is {b['shape']}"
    place = f"{of['tensor']}[{', '.join(map(str, of['index']))}]"
    return f"  {place}: A has {a['value']}, B has {b['value']}; {of['different']:,} values differ"
