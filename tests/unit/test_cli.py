"""The command line: commands by entry point, exit codes, what goes to stdout and what to stderr."""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from draftwing import __version__, cli
from draftwing.commands import env
from draftwing.config_errors import HIDDEN
from draftwing.errors import ConfigError, DraftwingError, RequestError, SetupError

ROOT = Path(__file__).resolve().parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][cli.GROUP]
COMMANDS = [EntryPoint(name, value, cli.GROUP) for name, value in DECLARED.items()]


@pytest.fixture(autouse=True)
def declared_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The commands of pyproject.toml, so that these tests need no installed package; and no config but their own."""
    monkeypatch.setattr(cli, "found_commands", lambda: COMMANDS)
    monkeypatch.chdir(tmp_path)
    for name in [*os.environ]:
        if name.startswith("DRAFTWING_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    root = logging.getLogger()
    before = root.level, [*root.handlers]
    yield
    root.level, root.handlers[:] = before


def with_command(monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace], int]) -> None:
    """One command, `try`, that does this."""

    def register(subparsers: Any) -> None:
        subparsers.add_parser("try").set_defaults(run=run)

    class Point(EntryPoint):
        def load(self) -> Any:
            return register

    monkeypatch.setattr(cli, "found_commands", lambda: [Point("try", "a:b", cli.GROUP)])


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(_: argparse.Namespace) -> int:
        raise error

    return run


def test_help_loads_no_torch_and_lists_every_command() -> None:
    script = (
        "import sys\n"
        "from importlib.metadata import EntryPoint\n"
        "from draftwing import cli\n"
        f"cli.found_commands = lambda: [EntryPoint(n, v, cli.GROUP) for n, v in {DECLARED!r}.items()]\n"
        "try:\n"
        "    cli.main(['--help'])\n"
        "except SystemExit as stop:\n"
        "    assert stop.code == 0, stop.code\n"
        "heavy = {'torch', 'transformers', 'ray', 'fastapi', 'gguf', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    path = os.pathsep.join([str(ROOT / "platform"), str(ROOT / "deployments")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "can't be loaded" not in done.stdout
    for name in DECLARED:
        assert f"\n    {name} " in done.stdout


@pytest.mark.parametrize("point", COMMANDS, ids=lambda point: point.name)
def test_every_declared_command_has_help_and_says_what_it_does(
    point: EntryPoint, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([point.name, "--help"])
    assert stop.value.code == 0
    assert "--log-level" in capsys.readouterr().out


def test_without_a_command_help_is_printed_and_all_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: draftwing")
    assert err == ""
    assert cli.main(["config"]) == 0
    assert capsys.readouterr().out.startswith("usage: draftwing config")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"draftwing {__version__}\n")


@pytest.mark.parametrize(
    "argv",
    [["serv"], ["--no-such-flag"], ["env", "--js"], ["config", "show", "--mod", "x"], ["--log-level", "loud", "env"]],
)
def test_wrong_usage_is_one_line_and_exit_code_2_and_no_flag_can_be_shortened(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["serv"], "serve"),
        (["policy", "shwo"], "show"),
        (["config", "show", "--drafer", "ngram"], "--drafter"),
        (["--log-level", "eror", "env"], "error"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_one_that_was_meant(
    argv: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(argv)
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_every_command_says_what_it_does_and_one_with_commands_below_prints_its_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for parser in cli._all_below(cli.build_parser(COMMANDS)):
        below = any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)
        if below:
            assert cli.main(parser.prog.split()[1:]) == 0
            assert capsys.readouterr().out.startswith(f"usage: {parser.prog}")
        else:
            assert parser.description, parser.prog


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("model.dtype is 3"), 2, "error: model.dtype is 3\n"),
        (ConfigError("one\ntwo"), 2, "error: one\nerror: two\n"),
        (SetupError("port 8000 is taken"), 3, "error: port 8000 is taken\n"),
        (DraftwingError("it failed"), 1, "error: it failed\n"),
        (RequestError("n is 0"), 2, "error: n is 0\n"),
        (DraftwingError(), 1, "error: DraftwingError\n"),
        (ValueError("a\n b"), 1, "error: ValueError: a b (a bug; --debug shows where)\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_command(monkeypatch, raising(error))
    assert cli.main(["try"]) == code
    assert capsys.readouterr() == ("", message)


@pytest.mark.parametrize("argv", [["--debug", "try"], ["try", "--debug"]])
def test_debug_shows_the_traceback_before_or_after_the_command(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_command(monkeypatch, raising(SetupError("no port")))
    assert cli.main(argv) == 3
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: no port\n")


def test_a_commands_exit_code_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with_command(monkeypatch, lambda _: 1)
    assert cli.main(["try"]) == 1


def test_a_command_that_cannot_be_loaded_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [EntryPoint("gone", "no_such_module:register", cli.GROUP), EntryPoint("void", "json:nothing", cli.GROUP)]
    monkeypatch.setattr(cli, "found_commands", lambda: [*COMMANDS, *broken])
    assert cli.main(["config", "show"]) == 0
    for name, cause in (("gone", "No module named 'no_such_module'"), ("void", "nothing")):
        capsys.readouterr()
        assert cli.main([name]) == 3
        assert f"error: command '{name}' can't be loaded from" in (err := capsys.readouterr().err)
        assert cause in err


def test_two_packages_with_one_command_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    points = [EntryPoint("env", "a:b", cli.GROUP), EntryPoint("env", "c:d", cli.GROUP)]
    monkeypatch.setattr(cli, "entry_points", lambda group: points)
    with pytest.raises(SetupError, match="command 'env' comes from a:b and c:d"):
        cli.found_commands()
    monkeypatch.setattr(cli, "entry_points", lambda group: [points[0], points[0]])
    assert cli.found_commands() == points[:1]


def test_a_reader_that_left_ends_the_command_quietly() -> None:
    script = (
        "import sys\n"
        "from draftwing import cli\n"
        "def run(args):\n"
        "    sys.stdin.read()\n"
        "    while True:\n"
        "        sys.stdout.write('x' * 100000)\n"
        "class Point:\n"
        "    name = 'try'\n"
        "    def load(self): return lambda sub: sub.add_parser('try').set_defaults(run=run)\n"
        "cli.found_commands = lambda: [Point()]\n"
        "sys.exit(cli.main(['try']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "platform")},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.close()
    assert (process.stderr.read(), process.wait(30)) == (b"", 1)
    process.stderr.close()


def test_a_broken_pipe_that_is_not_stdout_is_an_error() -> None:
    script = (
        "import sys\n"
        "from draftwing import cli\n"
        "def run(args): raise BrokenPipeError('the socket')\n"
        "class Point:\n"
        "    name = 'try'\n"
        "    def load(self): return lambda sub: sub.add_parser('try').set_defaults(run=run)\n"
        "cli.found_commands = lambda: [Point()]\n"
        "sys.exit(cli.main(['try']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "platform")},
    )
    assert done.returncode == 1
    assert b"BrokenPipeError: the socket" in done.stderr


def test_config_show_prints_value_and_origin_of_every_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("draftwing.yaml").write_text("drafters: [{method: ngram, max_match: 2}]\nserver:\n  keys: [swordfish123]\n")
    monkeypatch.setenv("DRAFTWING_MODEL__NAME", "m")
    argv = ["config", "show", "--model", "some/path", "--set", "limits.sequences=4", "--cpu-threads", "2"]
    assert cli.main([*argv, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    rows = {key: (row["value"], row["origin"]) for key, row in document["settings"].items()}
    assert (document["schema"], document["file"], err) == (1, "draftwing.yaml", "")
    assert rows["model.path"] == ("some/path", "flag")
    assert rows["model.name"] == ("m", "env DRAFTWING_MODEL__NAME")
    assert rows["model.cpu_threads"] == (2, "flag")
    assert rows["limits.sequences"] == (4, "flag")
    assert rows["policy.mode"] == ("adaptive", "default")
    assert rows["drafters"] == ([{"method": "ngram", "name": "ngram", "max_match": 2}], "file draftwing.yaml:1")
    assert rows["server.keys"] == (HIDDEN, "file draftwing.yaml:3")
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == len(rows)
    assert "swordfish" not in out
    assert '"some/path"' in out


@pytest.mark.parametrize(
    ("flags", "drafters", "mode"),
    [
        ([], [], "off"),
        (["--drafter", "ngram"], ["ngram"], "adaptive"),
        (["--drafter", "ngram", "--draft-tokens", "7"], ["ngram"], "fixed:k=7"),
        (["--drafter", "eagle3=some/head", "--draft-tokens", "3"], ["eagle3"], "fixed:k=3"),
        (["--drafter", "ngram", "--draft-tokens", "0"], ["ngram"], "off"),
        (["--drafter", "ngram", "--policy", "fixed:tree=2x1"], ["ngram"], "fixed:tree=2x1"),
        (["--drafter", "none"], [], "off"),
        (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'], ["ngram"], "fixed:k=3"),
        (["--set", "drafters=[{method: ngram}]", "--set", "policy.mode=off"], ["ngram"], "off"),
    ],
)
def test_the_flags_that_choose_a_drafter(
    flags: list[str], drafters: list[str], mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config", "show", "--json", *flags]) == 0
    rows = json.loads(capsys.readouterr().out)["settings"]
    assert [drafter["method"] for drafter in rows["drafters"]["value"]] == drafters
    assert rows["policy.mode"]["value"] == mode


def test_drafter_none_overrules_a_file_that_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.yaml").write_text("drafters: [{method: ngram}]\npolicy: {mode: 'fixed:k=2'}\n")
    assert cli.main(["config", "show", "--json", "-c", "c.yaml", "--drafter", "none"]) == 0
    rows = json.loads(capsys.readouterr().out)["settings"]
    assert (rows["drafters"]["value"], rows["policy.mode"]["value"]) == ([], "off")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--set", "limits.n"], "--set is 'limits.n'; expected KEY=VALUE, for example limits.sequences=8"),
        (["--set", "limts.n=3"], "limts.n is not a setting; did you mean limits.n?"),
        (["--set", "limits.n=many"], "limits.n is 'many'; expected a whole number (at least 1, at most 65536)"),
        (
            ["--set", "limits.n=1", "--set", "limits.n=2"],
            "--set limits.n and --set limits.n both set limits.n; give one",
        ),
        (["--model", "a", "--set", "model.path=b"], "--model and --set model.path both set model.path; give one"),
        (
            ["--cpu-threads", "-1"],
            "model.cpu_threads is -1; expected null or a whole number (at least 1, at most 1024)",
        ),
        (["--draft-tokens", "-1"], "--draft-tokens is '-1'; expected a whole number from 0 to 64"),
        (["--draft-tokens", "nan"], "--draft-tokens is 'nan'; expected a whole number from 0 to 64"),
        (["--draft-tokens", "65"], "--draft-tokens is '65'; expected a whole number from 0 to 64"),
        (["--draft-tokens", "9" * 5000], "--draft-tokens is '99999"),
        (["--policy", "off", "--draft-tokens", "1"], "--policy and --draft-tokens both set policy.mode; give one"),
        (
            ["--drafter", "ngram", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
            "--speculative-config and --drafter both set drafters; give one",
        ),
        (["--speculative-config", "{"], "--speculative-config: not valid JSON"),
        (["-c", "missing.yaml"], "config file missing.yaml can't be read: No such file or directory"),
        (["--drafter", "mpt"], "drafters.0.method is 'mpt'; did you mean 'mtp'?; expected one of"),
        (["--drafter", "eagle3"], "drafters.0.path is missing; expected a folder or a hub id"),
        (["--drafter", "draft_model="], "drafters.0.path is ''; expected a folder, a hub id or a GGUF file"),
        (["--drafter", "ngram=x"], "drafters.0.path is not a setting"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config", "show", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert len(err.splitlines()) == 1
    assert len(err) < 300


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["generate", "--max-tokens", "0", "hi"], "max_tokens is 0; expected"),
        (["generate", "--temperature", "-1", "hi"], "temperature is -1.0; expected"),
        (["generate", "--stop", "", "hi"], "stop.0 is ''; expected"),
        (["generate", "--prompt-file", "nix"], "--prompt-file nix can't be read: No such file or directory\n"),
        (["verify", "--max-tokens", "0"], "max_tokens is 0; expected"),
        (["bench", "acceptance", "--max-tokens", "-3"], "max_tokens is -3; expected"),
        (["bench", "acceptance", "--prompts", "nix"], "--prompts nix can't be read: No such file or directory\n"),
    ],
)
def test_what_a_run_asks_for_is_checked_before_a_model_is_looked_for(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*argv, "--model", "no/such/model", "--drafter", "ngram"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_env_describes_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["software"]["draftwing"] == __version__
    assert document["cpu"]["usable_cores"] >= 1
    assert document["memory"]["total_gib"] > 0
    assert document["torch"]["version"] == document["packages"]["torch"]
    assert cli.main(["env"]) == 0
    assert f"  draftwing: {__version__}\n" in capsys.readouterr().out


def test_env_does_not_fail_where_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> dict[str, Any]:
        raise OSError("libcuda.so.1: cannot open\nshared object file")

    monkeypatch.setattr(env, "SECTIONS", {**env.SECTIONS, "torch": broken, "variables": dict})
    monkeypatch.setattr(env, "PACKAGES", ("no-such-package",))
    monkeypatch.setattr(env, "_read", lambda path: "")
    assert cli.main(["env", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["torch"] == {"error": "OSError: libcuda.so.1: cannot open shared object file"}
    assert document["packages"] == {"no-such-package": None}
    assert document["cpu"]["flags"] is None
    assert cli.main(["env"]) == 0
    assert capsys.readouterr().out.endswith("\nvariables: none\n")


def test_env_hides_what_may_be_secret(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(env, "SECTIONS", {"variables": env.SECTIONS["variables"]})
    monkeypatch.setenv("HF_TOKEN", "swordfish1")
    monkeypatch.setenv("DRAFTWING_SERVER__KEYS", "[swordfish2]")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:swordfish3@hub.example/x")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert cli.main(["env", "--json"]) == 0
    out = capsys.readouterr().out
    assert "swordfish" not in out
    variables = json.loads(out)["variables"]
    assert variables["HF_TOKEN"] == HIDDEN
    assert variables["HF_ENDPOINT"] == f"https://{HIDDEN}@hub.example/x"
    assert variables["OMP_NUM_THREADS"] == "2"


def log_one(*flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: argparse.Namespace) -> int:
        logger = logging.getLogger("draftwing.test")
        logger.info("started")
        logger.warning("bad id %s", "x\n12:00:00 info forged", extra={"request_id": "r\n1"})
        logging.getLogger("some.library").info("chatter")
        return 0

    with_command(monkeypatch, run)
    assert cli.main(["try", *flags]) == 0


def test_text_logs_go_to_stderr_and_no_request_can_forge_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_one(monkeypatch=monkeypatch)
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert first.endswith("info draftwing.test: started")
    assert second.endswith("warning draftwing.test [r\\n1]: bad id x\\n12:00:00 info forged")


def test_json_logs_are_one_object_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    log_one("--log-format", "json", "--log-level", "warning", monkeypatch=monkeypatch)
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["request_id"]) == ("warning", "draftwing.test", "r\n1")
    assert entry["message"] == "bad id x\n12:00:00 info forged"
