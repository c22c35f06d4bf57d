"""What a record may show of a command and an environment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.training.masking import command_to_write, environment_to_write, masked_value, without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/x", "https://***@host/x"),
        ("https://ghp_abc@host/x", "https://***@host/x"),
        ("http://me:p@ss@host:80", "http://***@host:80"),
        ("socks5h://me:pw@host", "socks5h://***@host"),
        ("a https://u:p@h b https://v:q@i", "a https://***@h b https://***@i"),
        ("ssh://git@host/x", "ssh://git@host/x"),
        ("https://host/a@b?c=d:e@f", "https://host/a@b?c=d:e@f"),
        ("step:1 - a@b", "step:1 - a@b"),
    ],
)
def test_passwords_in_urls_are_masked_and_nothing_else(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "hub_token", "MY_SECRET", "PASSWD", "DbPassword", "APIKEY", "api_key", "CREDENTIALS"]
)
def test_a_variable_whose_name_says_secret_is_masked(name: str) -> None:
    assert masked_value(name, "x") == "***"
    assert masked_value(name, "") == ""


def test_an_argument_whose_key_is_a_secret_is_masked_and_sizes_in_tokens_are_not() -> None:
    command = ["--api-key=x", "+trainer.hf_token=y", "secret_access_key=z", "trainer.password=p"]
    assert command_to_write(command) == [
        "--api-key=***",
        "+trainer.hf_token=***",
        "secret_access_key=***",
        "trainer.password=***",
    ]
    sizes = ["max_num_batched_tokens=8192", "ppo_max_token_len_per_gpu=16384", "model.tokenizer=x"]
    assert command_to_write(sizes) == sizes


def test_the_environment_shows_what_was_set_and_what_shapes_training() -> None:
    inherited = {"PATH": "/bin", "EDITOR": "vi", "HCCL_BUFFSIZE": "300", "CHANGED": "a"}
    environment = {**inherited, "CHANGED": "b", "NEW": "c"}
    shown = environment_to_write(environment, inherited)
    assert shown == {"CHANGED": "b", "HCCL_BUFFSIZE": "300", "NEW": "c", "PATH": "/bin"}


@given(st.text(alphabet="abcXYZ019_.~%", min_size=1), st.text(alphabet="abcXYZ019_.~%:", min_size=1))
def test_no_password_survives(user: str, password: str) -> None:
    shown = without_passwords(f"x https://{user}:{password}@host/path y")
    assert shown == "x https://***@host/path y"
