"""A test whose service is missing is skipped by name, and fails where all must run."""

from __future__ import annotations

import pytest

from tests.conftest import require


def test_installed_binary_and_module_pass() -> None:
    require("sh")
    require("pytest", module="pytest")
    require("coreutils", binary="ls", module="json")


@pytest.mark.parametrize(("binary", "module"), [(None, None), ("no-such-binary", "json"), ("ls", "no_such_module")])
def test_missing_skips_naming_the_package(
    monkeypatch: pytest.MonkeyPatch, binary: str | None, module: str | None
) -> None:
    monkeypatch.delenv("DRAFTWING_REQUIRE_ALL", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs the package no-such-package"):
        require("no-such-package", binary=binary, module=module)


def test_missing_fails_where_all_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWING_REQUIRE_ALL", "1")
    with pytest.raises(pytest.fail.Exception, match="needs the package no-such-package"):
        require("no-such-package")
