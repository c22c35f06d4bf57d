"""uv is found beside npu-rl, and gets pip's configuration in variables, in place of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError
from npu_rl.stack.pylocks.uv_program import find_uv, uv_environment
from npu_rl.stack.sources.pip_config import read_pip_settings


def test_pips_configuration_reaches_uv(tmp_path: Path) -> None:
    conf = tmp_path / "pip.conf"
    conf.write_text(
        "[global]\nindex-url = https://me:pw@one.example/simple\n"
        "extra-index-url = https://two.example/simple https://three.example/simple\n"
        "trusted-host = one.example two.example:8443\ncert = /certs/all.pem\nclient-cert = /certs/me.pem\n"
        "timeout = 31.7\nretries = 2\nproxy = http://proxy.example:3128\nfind-links = /wheels\n"
    )
    settings = read_pip_settings({"PIP_CONFIG_FILE": str(conf), "HOME": str(tmp_path)}, system=tmp_path)
    own = {"PATH": "/bin", "UV_INDEX": "https://uvs.example", "UV_OFFLINE": "1", "UV_CACHE_DIR": "/cache"}
    found = uv_environment(settings, own)
    assert found == {
        "PATH": "/bin",
        "UV_CACHE_DIR": "/cache",
        "UV_DEFAULT_INDEX": "https://me:pw@one.example/simple",
        "UV_INDEX": "https://two.example/simple https://three.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels",
        "UV_INSECURE_HOST": "one.example two.example:8443",
        "UV_HTTP_TIMEOUT": "32",
        "UV_HTTP_RETRIES": "2",
        "SSL_CERT_FILE": "/certs/all.pem",
        "SSL_CLIENT_CERT": "/certs/me.pem",
        **dict.fromkeys(
            ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://proxy.example:3128"
        ),
        "UV_NO_CONFIG": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "NO_COLOR": "1",
    }


def test_without_uv_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(HostError, match="pip install --no-deps uv"):
        find_uv({"PATH": str(tmp_path)})
    program = tmp_path / "uv"
    program.write_text("")
    assert find_uv({"PATH": os.devnull}) == str(program)
