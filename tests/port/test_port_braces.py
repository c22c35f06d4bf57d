"""Classes and functions of languages with braces: another name is another place, another signature is not."""

from __future__ import annotations

import pytest

from tests.port.judging import judged, only
from tests.port.test_port_blocks import steps

CLASS = "{0}\n  // Around.\n{1}\n" + steps("    ", "{0}(x);") + "  }}\n}};\n"
TYPE, METHOD = "class Cache {", "  int run(int x) {"
LONG = "  int {0}(int x,\n          int y) {{"


def state(path: str, old: tuple[str, str], new: tuple[str, str]) -> tuple[str, str]:
    """Judge a change of the method's fourth line in a version with other heads."""
    before, after = CLASS.format(*old), CLASS.format(*new)
    hunk = only(judged(before, before.replace("middle(x)", "middle(x, 1)"), after, path))
    return hunk.state, hunk.why


@pytest.mark.parametrize(
    ("path", "old", "new", "why"),
    [
        ("m.h", (TYPE, METHOD), ("class Pool {", METHOD), "in `run`, in `class Pool`"),
        ("m.h", (TYPE, METHOD), (TYPE, "  int go(int x) {"), "in `go`; it is for `run`"),
        ("m.h", (TYPE, LONG.format("run")), (TYPE, LONG.format("go")), "in `go`; it is for `run`"),
        ("m.rs", ("impl A {", "  fn run(&self) {"), ("impl B {", "  fn run(&self) {"), "in `impl B`"),
        ("m.rs", ("impl A {", "  pub fn run(&self) {"), ("impl A {", "  pub fn go(&self) {"), "in `go`"),
        ("m.ts", ("export class A {", "  run(x) {"), ("export class A {", "  go(x) {"), "in `go`"),
    ],
)
def test_another_class_or_function_is_a_conflict(
    path: str, old: tuple[str, str], new: tuple[str, str], why: str
) -> None:
    fate, told = state(path, old, new)
    assert fate == "conflict"
    assert why in told


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("m.h", (TYPE, METHOD), ("class Cache final : public Base {", METHOD)),
        ("m.h", (TYPE, METHOD), ("template <typename T> class Cache {", METHOD)),
        ("m.h", (TYPE, METHOD), (TYPE, "  static int run(int x, int y) const {")),
        ("m.h", (TYPE, "  if (x) {"), (TYPE, "  if (x && y) {")),
        ("m.cu", (TYPE, "  DISPATCH(x, [&] {"), (TYPE, "  DISPATCH_MORE(x, [&] {")),
        ("m.ts", ("export class A {", "  run(x) {"), ("export class A {", "  async run(x) {")),
    ],
)
def test_another_signature_or_condition_is_the_same_place(
    path: str, old: tuple[str, str], new: tuple[str, str]
) -> None:
    assert state(path, old, new) == ("exact", "")
