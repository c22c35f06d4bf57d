"""What may be shown of texts, data, arguments and variables that hold secrets."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.errors import NpuRlError
from npu_rl.common.masking import (
    Secrets,
    masked_argument,
    masked_data,
    masked_text,
    masked_value,
    without_passwords,
)
from npu_rl.recipes.plan.plan import RULE_IDS
from npu_rl.training.record.record_masking import recorded_environment
from tests.support import ROOT, cpu_below


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/x", "https://***@host/x"),
        ("http://me:p@ss@host:80", "http://***@host:80"),
        ("a https://u:p@h b https://v:q@i", "a https://***@h b https://***@i"),
        ("https://h/=http://u:pa ss@m/", "https://h/=http://***@m/"),
        ("http://u:pa/ss@m/x", "http://***@m/x"),
        ("https://h/x?token=S&a=b", "https://h/x?token=***&a=b"),
        ("https://h/x?X-Amz-Signature=S", "https://h/x?X-Amz-Signature=***"),
        ("ssh://git@host/x", "ssh://git@host/x"),
        ("https://host/a@b?c=d:e@f", "https://host/a@b?c=d:e@f"),
    ],
)
def test_passwords_in_urls_are_masked_and_nothing_else(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "hub_token", "MY_SECRET", "PASSWD", "DbPassword", "APIKEY", "api_key", "CREDENTIALS"),
        *("PYTORCH_KEY", "RAY_AUTH", "MY_SECRET_KEY", "AWS_ACCESS_KEY_ID", "HTTP_AUTHORIZATION", "DB_PASS"),
        *(
            "GITLAB_PAT",
            "SLACK_WEBHOOK_URL",
            "SESSION_COOKIE",
            "SSH_PASSPHRASE",
            "PGPASSWORD",
            "MYSQL_PWD",
            "OAUTH",
        ),
    ],
)
def test_a_variable_whose_name_says_secret_is_masked(name: str) -> None:
    assert masked_value(name, "x") == "***"
    assert masked_value(name, "") == ""
    assert masked_data({"env": {name: "x"}}) == {"env": {name: "***"}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("VLLM_MAX_NUM_BATCHED_TOKENS", "8192"),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
        ("USE_AUTH", "false"),
        ("PWD", "/home/me"),
        ("tiktoken", "0.14.0"),
        ("PyJWT", "2.15.1"),
    ],
)
def test_a_variable_that_only_looks_like_it_is_shown(name: str, value: str) -> None:
    assert masked_value(name, value) == value


@pytest.mark.parametrize(
    "argument",
    [
        *("--api-key=x", "+trainer.hf_token=x", "secret_access_key=x", "trainer.password=x", "env.MY_KEY=x"),
        *("++a.wandb_api_key=X1", "overrides.a.credentials.user=x", "env.my_key=x", "trainer.apiKey=x"),
    ],
)
def test_an_argument_whose_key_is_a_secret_is_masked(argument: str) -> None:
    assert masked_argument(argument) == argument.partition("=")[0] + "=***"


@pytest.mark.parametrize(
    "argument",
    [
        *("max_num_batched_tokens=8192", "ppo_max_token_len_per_gpu=16384", "model.tokenizer=x"),
        *("data.prompt_key=prompt", "data.reward_fn_key=data_source", "model.eos_token=</s>", "key=x", "-m"),
    ],
)
def test_sizes_columns_and_tokens_of_a_model_are_shown(argument: str) -> None:
    assert masked_argument(argument) == argument


def test_the_reason_behind_the_id_of_a_rule_is_shown() -> None:
    """Whatever looks like an id in the rooms that judge, since an id is only a string there."""
    rooms = ("judgement", "plan", "trainer_keys", "trainer_code")
    texts = "".join(
        file.read_text(encoding="utf-8")
        for room in rooms
        for file in sorted((ROOT / "npu_rl" / "recipes" / room).rglob("*.py"))
    )
    ids = {*RULE_IDS, *re.findall(r'"([a-z]+(?:-[a-z]+)+)"', texts)}
    assert {"unknown-key", "reserved-key", "rollout-dp-size", "cluster-address"} <= ids
    reason = "A patch of ours reads it"
    for one in ids:
        assert masked_argument(f"plan.except.{one}={reason}") == f"plan.except.{one}={reason}"
        assert masked_text(f"  {one}: {reason}\n") == f"  {one}: {reason}\n"
    data = {"plan": {"except": dict.fromkeys(ids, reason)}, "overruled": dict.fromkeys(ids, reason)}
    assert masked_data(data) == data
    assert Secrets.of({}, data).forms == ()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Invalid argument 'env.X_KEY=S'", "Invalid argument 'env.X_KEY=***'"),
        ("sent Authorization: Bearer S", "sent Authorization: Bearer ***"),
        ("{'api_key': 'S', 'eos_token': '</s>', 'n': 1}", "{'api_key': '***', 'eos_token': '</s>', 'n': 1}"),
        ('{"hf_token": "S", "n": 1}', '{"hf_token": "***", "n": 1}'),
        (
            r'"{\"env_vars\": {\"A_KEY\": \"S\", \"B\": 1}}"',
            r'"{\"env_vars\": {\"A_KEY\": \"***\", \"B\": 1}}"',
        ),
        ("a: 1\n  wandb_api_key: S\nb: 2", "a: 1\n  wandb_api_key: ***\nb: 2"),
        ("--env=HF_TOKEN=S", "--env=HF_TOKEN=***"),
        ("write key=value, such as optimizer.lr=1e-6", "write key=value, such as optimizer.lr=1e-6"),
        ("step:3 - perf/total_num_tokens:8192 - a:0.5", "step:3 - perf/total_num_tokens:8192 - a:0.5"),
    ],
)
def test_running_text(text: str, shown: str) -> None:
    assert masked_text(text) == shown
    assert masked_text(shown) == shown


def test_data_is_masked_below_a_secret_key_and_otherwise_the_same_object() -> None:
    data: dict[str, Any] = {"credentials": {"user": "a"}, "a": {"lr": 1e-6, "n": 1, "keys": [0, None, True]}}
    assert masked_data(data) == {**data, "credentials": "***"}
    assert masked_data({"secrets": {}, "password": None, "a_secret": [1], "b_secret": 1}) == {
        "secrets": {},
        "password": None,
        "a_secret": "***",
        "b_secret": "***",
    }
    text = "plain text"
    assert masked_data([text])[0] is text


def test_an_error_shows_no_secret() -> None:
    error = NpuRlError(
        "What", where="command line: env.HF_TOKEN=S", why="at https://me:S@h/x", hint="a_secret=S"
    )
    assert "S" not in str(error)


def test_a_known_secret_is_masked_in_every_form() -> None:
    value = 'it\'s "p/w" é'
    known = Secrets.of({"A_TOKEN": value, "HTTP_PROXY": "http://u:p%20w%20d1@h"}, {"a.api_key": "S3CRET-1"})
    for form in (value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value), "p w d1", "S3CRET-1"):
        assert known.mask(f"<{form}>") == "<***>"
    assert masked_data({"x": f"see {value}"}, known=known) == {"x": "see ***"}


def test_the_environment_shows_what_was_set_and_what_shapes_training() -> None:
    inherited = {"PATH": "/bin", "EDITOR": "vi", "HCCL_BUFFSIZE": "300", "CHANGED": "a"}
    environment = {**inherited, "CHANGED": "b", "NEW": "c"}
    shown = recorded_environment(environment, inherited)
    assert shown == {"CHANGED": "b", "HCCL_BUFFSIZE": "300", "NEW": "c", "PATH": "/bin"}


@given(st.text(alphabet="abcXYZ019_.~%", min_size=1), st.text(alphabet="abcXYZ019_.~% ?#", min_size=1))
def test_no_password_survives(user: str, password: str) -> None:
    shown = without_passwords(f"x https://{user}:{password}@host/path y")
    assert shown == "x https://***@host/path y"


@pytest.mark.parametrize(
    "piece",
    [
        *("a=b ", "a-", "http://a:b/", "http://a:b c", "'a': ", "{a: ", "?token", "http://x@", "=", "://"),
        *("key=", "x=", "x='", "x_key=", "token=1;", "://" + ":" * 997, "://" + "a:" * 400),
    ],
)
def test_the_time_of_a_line_grows_with_its_length(piece: str) -> None:
    """64 KiB of `x=` took 11 seconds, with the square of the length: a model writes such samples into the log."""
    text = piece * ((1 << 16) // len(piece))
    with cpu_below(3):
        shown = masked_text(f"{text} HF_TOKEN={'a' * 10_000} b {text}")
    assert "aaaaaaa" not in shown
