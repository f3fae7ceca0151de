"""The ways in which Prefect's API can be configured: each is noticed before Prefect is imported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prefect.settings import Settings

from qnnsweep.flows.server.temporary import is_surely_needed

URL = "http://127.0.0.1:9/api"
FILES = {
    "nothing": {},
    "project without settings": {"pyproject.toml": '[project]\nname = "mine"\ndependencies = ["prefect"]\n'},
    "variables of another program": {".env": "TOKEN=secret\n"},
    "prefect.toml": {"prefect.toml": f'[api]\nurl = "{URL}"\n'},
    "project": {"pyproject.toml": f'[tool.prefect.api]\nurl = "{URL}"\n'},
    ".env": {".env": f"PREFECT_API_URL={URL}\n"},
    "profile": {"home/profiles.toml": f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "{URL}"\n'},
}
NEEDED = ("nothing", "project without settings", "variables of another program")


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_server_starts_before_prefect_is_imported_only_if_no_file_configures_another(
    tmp_path: Path, name: str
) -> None:
    for path, text in FILES[name].items():
        (tmp_path / path).write_text(text)
    expected = name in NEEDED
    assert (is_surely_needed(), Settings().api.url) == (expected, None if expected else URL)


@pytest.mark.parametrize("variable", ["PREFECT_API_URL", "prefect_api_url"])
def test_a_server_starts_before_prefect_is_imported_only_if_no_variable_configures_another(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, URL)
    assert (is_surely_needed(), Settings().api.url) == (False, URL)


def test_a_project_file_that_cannot_be_read_is_left_to_prefect(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool")
    assert not is_surely_needed()
