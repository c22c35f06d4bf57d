"""Which rows DAPO trains on. In its own trainer: patchsets/witnesses/dapo-splits-groups.py."""

from __future__ import annotations

from typing import Any

import pytest

from npu_rl.runtime.whole_groups import first_groups, group_rows


class Batch:
    """A batch whose rows are their uids."""

    def __init__(self, uids: list[str]) -> None:
        self.non_tensor_batch = {"uid": uids}

    def __getitem__(self, rows: Any) -> list[str]:
        uids = self.non_tensor_batch["uid"]
        return uids[rows] if isinstance(rows, slice) else [uids[row] for row in rows]


def test_neighbours_are_cut_as_upstream_cuts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    uids = list("aaabbbccc")
    assert group_rows(uids, 2) == [0, 1, 2, 3, 4, 5]
    assert first_groups(Batch(uids), 2, 6) == list("aaabbb")
    monkeypatch.setenv("NPU_RL_DAPO_WHOLE_GROUPS", "0")
    assert first_groups(Batch(uids), 2, 6) == list("aaabbb")


def test_responses_that_stand_apart_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    uids = list("abcabcabc")
    assert first_groups(Batch(uids), 2, 6) == list("ababab")
    monkeypatch.setenv("NPU_RL_DAPO_WHOLE_GROUPS", "0")
    assert first_groups(Batch(uids), 2, 6) == list("abcabc")


def test_two_generations_one_after_the_other() -> None:
    assert first_groups(Batch(list("ababcdcd")), 3, 6) == list("ababcc")
