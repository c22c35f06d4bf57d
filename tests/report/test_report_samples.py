"""The samples of a report: shortened so that the page stays small, whatever a model writes."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.masking import Secrets
from npu_rl.common.printable import printable
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.report.report_samples import cut, sampled_steps
from npu_rl.training.report.write_report import ReportRequest, write_report
from tests.report.made_run import made_attempt, made_record, write_samples


@pytest.mark.parametrize("character", ["\U000e0041", '"'])
def test_a_page_is_small_whatever_its_samples_are(tmp_path: Path, character: str) -> None:
    record = made_record(tmp_path)
    made_attempt(record, [1])
    (record.samples / "validation").mkdir()
    rows = [{"input": character * 5000, "output": character * 5000, "score": score} for score in range(4)]
    for step in range(100, 1001, 100):
        write_samples(record, step, rows)
        same = (record.samples / f"{step}.jsonl").read_bytes()
        (record.samples / "validation" / f"{step}.jsonl").write_bytes(same)
    output = tmp_path / "report.html"
    write_report(ReportRequest((tmp_path, "demo"), output))
    assert output.stat().st_size < 5 << 19  # of 3 MB, with room for charts and alarms
    assert "characters left out" in output.read_text()


def test_a_long_line_is_one_sample_and_what_is_beyond_the_limit_is_left_out(tmp_path: Path) -> None:
    record = made_record(tmp_path)
    made_attempt(record, [1, 2])
    row = {"input": "q", "output": "a" * (5 << 20), "score": 1.0}
    write_samples(record, 1, [row])
    write_samples(record, 2, [row, {**row, "score": 2.0}])
    first, second = sampled_steps(recorded_run(tmp_path, "demo"), Secrets())
    assert (first.responses, first.unread, first.whole) == (1, 0, True)
    assert (second.responses, second.unread, second.whole) == (1, 0, False)


@given(st.text(st.sampled_from('ab"\n\x00\u202e\U000e0041中'), max_size=4000), st.integers(0, 3))
def test_a_text_is_cut_in_the_middle_by_what_it_is_written_with(text: str, times: int) -> None:
    text *= 10**times
    short = cut(text)
    assert len(html.escape(printable(short))) <= 3100
    if short == text:
        return
    head, between, tail = short.partition("\n[... ")
    count, _, tail = tail.partition(" characters left out ...]\n")
    assert between and text.startswith(head) and text.endswith(tail)
    assert len(head) + len(tail) + int(count.replace(",", "")) == len(text)
    assert len(html.escape(printable(text))) > 3000
