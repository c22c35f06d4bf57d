"""Equality without algebra. What needs the library is in test_deepscaler_algebra.py."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from npu_rl.runtime.deepscaler.equality import same_without_algebra, spelled
from tests.runtime.deepscaler_pairs import DIFFERENT, HEDGED, SAME


def judge(right: object, given: object) -> bool | None:
    return same_without_algebra(spelled(right), spelled(given))


def test_pairs_without_algebra() -> None:
    """Equality is found but for one that algebra has to judge; no other pair is taken for equal."""
    assert [pair for pair in SAME if judge(*pair) is not True] == [(r"\frac{1}{-2}", "-0.5")]
    assert [pair for pair in [*DIFFERENT, *HEDGED] if judge(*pair) is True] == []


_ints = st.integers(-(10**12), 10**12)
_below = st.integers(1, 10**6)


def _written(value: Fraction) -> list[str]:
    sign, above, below = "-" if value < 0 else "", abs(value.numerator), value.denominator
    whole, rest = divmod(above, below)
    found = [
        f"{sign}{above}/{below}", rf"{sign}\frac{{{above}}}{{{below}}}", rf"\dfrac{{{sign}{above}}}{{{below}}}",
        rf"{sign}\frac{{{3 * above}}}{{{3 * below}}}", rf"$ {sign}{above}/{below} $",
    ]  # fmt: skip
    if below == 1:
        thousands = f"{sign}{above:,}"
        found += [f"{sign}{above}", thousands, f"{sign}{above}.00", thousands.replace(",", "{,}")]
    if rest and whole:
        found.append(rf"{sign}{whole}\frac{{{rest}}}{{{below}}}")
    return found


@given(_ints, _below, st.data())
def test_a_fraction_is_equal_however_it_is_written(above: int, below: int, data: st.DataObject) -> None:
    ways = _written(Fraction(above, below))
    assert judge(data.draw(st.sampled_from(ways)), data.draw(st.sampled_from(ways))) is True


@given(_ints, _below, _ints, _below)
def test_other_fractions_are_not_equal(a: int, b: int, c: int, d: int) -> None:
    assume(Fraction(a, b) != Fraction(c, d))
    assert judge(f"{a}/{b}", rf"\frac{{{c}}}{{{d}}}") is False


@given(st.integers(1, 999), st.integers(1, 999), st.integers(6, 12))
def test_six_correct_places_stand_for_a_fraction(above: int, below: int, places: int) -> None:
    value = Fraction(above, below)
    rounded = round(value * 10**places)
    assert judge(f"{above}/{below}", f"{Decimal(rounded).scaleb(-places):f}") is True
    assume(value * 10**places % 1 != Fraction(1, 2))  # 1/128 is 0.007812 and 0.007813
    assert judge(f"{above}/{below}", f"{Decimal(rounded + 1).scaleb(-places):f}") is False
