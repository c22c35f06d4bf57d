"""`data prepare --for mindspeed-rl`: the tree's own preprocessor, with the argument that the document forgets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.data.data_check.mindspeed_rl_files import preprocess, sequences
from tests.data_check.test_check import made_tokenizer
from tests.datasets.test_prepare import cli, deepscaler, write

pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

PIN = "62e9928ae89d9570f659b46e816bc55e1191b5e7"

# What the real one imports, in the ways it does (cli/preprocess_data.py@62e9928), without torch.
SCRIPT = """
import struct, sys
from mindspeed_rl.config_cls.base import NAME
from mindspeed_rl.utils import Loggers
config = sys.argv.pop(1)
given = dict(argument.split("=", 1) for argument in sys.argv[1:])
assert config == "deepscaler" and NAME == "base" and Loggers() == "loggers"
rows = sum(1 for _ in open(given["input"]))
for field in ("input_ids", "labels"):
    prefix = f"{given['output_prefix']}_packed_{field}_document"
    open(prefix + ".bin", "wb").write(open(given["input"], "rb").read())
    kept = rows - DROPPED
    open(prefix + ".idx", "wb").write(b"MMIDIDX\\x00\\x00" + struct.pack("<QBQQ", 1, 4, kept, kept + 1))
"""


def fake_tree(folder: Path, *, dropped: int = 0, script: str = SCRIPT) -> Path:
    for name, text in {
        "cli/preprocess_data.py": script.replace("DROPPED", str(dropped)),
        "configs/datasets/deepscaler.yaml": "prompt_type: qwen_r1\n",
        "mindspeed_rl/__init__.py": "raise ImportError('the whole trainer')\n",
        "mindspeed_rl/config_cls/__init__.py": "from .absent import Nothing\n",
        "mindspeed_rl/config_cls/base.py": "NAME = 'base'\n",
        "mindspeed_rl/datasets/__init__.py": "",
        "mindspeed_rl/utils/__init__.py": "from .loggers import Loggers\nfrom .absent import Nothing\n",
        "mindspeed_rl/utils/loggers.py": "def Loggers():\n    return 'loggers'\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def rows_files(folder: Path, *counts: int) -> list[Path]:
    files = [folder / "train.parquet", folder / "test.parquet"]
    for path, count in zip(files, counts, strict=True):
        truths = [{"ground_truth": str(n + 1)} for n in range(count)]
        questions = [{"question": f"What is {n}+1?"} for n in range(count)]
        pq.write_table(pa.table({"reward_model": truths, "extra_info": questions}), path)
    return files


def test_the_script_is_run_without_the_trainer(tmp_path: Path) -> None:
    made = preprocess(fake_tree(tmp_path / "code"), sys.executable, tmp_path, rows_files(tmp_path, 5, 2))
    assert made == {
        f"{prefix}_packed_{field}_document.{end}": rows
        for prefix, rows in (("data", 5), ("test", 2))
        for field in ("input_ids", "labels")
        for end in ("bin", "idx")
    }
    assert sequences(tmp_path / "test_packed_labels_document.idx") == 2
    assert not list(tmp_path.glob("*.work")) and not list((tmp_path / "code").rglob("__pycache__"))


def test_options_that_belong_together(tmp_path: Path, quickstart_workspace: Path) -> None:
    source = write(tmp_path / "d.json", deepscaler(50))
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/tokenizer.json").write_text("{}")
    base = ("prepare", "deepscaler", "--input", source, "--output", tmp_path / "out", "--for", "mindspeed-rl")
    for more, word in (
        (("--for", "verl", "--workspace", tmp_path), "--workspace has no effect without --for mindspeed-rl"),
        ((), "needs a tokenizer"),
        (("--template", "boxed"), "--template has no effect"),
        (
            ("--tokenizer", tmp_path / "tokenizer", "--workspace", quickstart_workspace),
            "has no MindSpeed-RL",
        ),
    ):
        done = cli(*base, *more)
        assert done.returncode in (2, 3) and word in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.upstreams
@pytest.mark.rehearsal
def test_the_real_preprocessor(tmp_path: Path, upstreams: Path) -> None:
    """It runs on a CPU, writes the same bytes twice, and its prompts ask for a box."""
    code = tmp_path / "code"
    code.mkdir()
    repository = upstreams / "Ascend+MindSpeed-RL/repo"
    words = ["git", "-C", repository, "archive", PIN, "cli", "configs", "mindspeed_rl"]
    archive = subprocess.run(words, capture_output=True, check=True)
    subprocess.run(["tar", "x"], cwd=code, input=archive.stdout, check=True)
    tokenizer = made_tokenizer(tmp_path)
    written = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        made = preprocess(code, sys.executable, tokenizer, rows_files(folder, 300, 20))
        assert set(made.values()) == {300, 20} and len(made) == 12
        written.append({file: (folder / file).read_bytes() for file in made})
    assert written[0] == written[1]
    read = (
        "import array, sys\n"
        "from transformers import AutoTokenizer\n"
        "ids = array.array('i', open(sys.argv[1], 'rb').read()).tolist()\n"
        "print(AutoTokenizer.from_pretrained(sys.argv[2]).decode(ids[:2000]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", read, tmp_path / "one/data_packed_input_ids_document.bin", tokenizer],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "What is 0+1?" in done.stdout and "within \\boxed{}" in done.stdout.replace("\n", "")
