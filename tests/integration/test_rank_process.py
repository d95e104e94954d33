"""The rank as a process: how it comes up or doesn't, how it dies, and that nothing is left running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from draftwing.errors import ConfigError, DraftwingError, OverloadedError, SetupError
from draftwing.parallel.client import EngineClient, ReplicaDied
from draftwing.parallel.place import RankPlace
from draftwing.parallel.process import RankProcess
from tests.integration.channel_tools import FACTORY, client_of, collect, drive, echo, fake_rank, text_from, until

START_S = 20


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ready(process: RankProcess) -> EngineClient:
    return await EngineClient.connect(await asyncio.to_thread(process.wait_ready, START_S))


def test_a_rank_starts_reports_serves_and_stops() -> None:
    async def main() -> None:
        progress: list[str] = []
        with fake_rank() as process:
            endpoint = await asyncio.to_thread(process.wait_ready, START_S, progress.append)
            async with client_of(endpoint) as client:
                assert await text_from(client, echo()) == "abca"
                assert (await client.stats()).pid == process.pid
                assert process.poll() is None
                start = time.monotonic()
                assert process.stop() == 0
                assert time.monotonic() - start < 3
                assert (await client.wait_dead()).cause == "shutdown"
        assert progress == ["loading the fake"]
        assert not running(process.pid)

    drive(main)


def test_a_loading_rank_answers_and_refuses() -> None:
    async def main() -> None:
        with fake_rank(load_s=1.0) as process:
            seen: list[str] = []
            waiting = asyncio.create_task(asyncio.to_thread(process.wait_ready, START_S, seen.append))
            await until(lambda: process.endpoint is not None, START_S)
            assert process.endpoint is not None
            async with client_of(process.endpoint) as client:
                assert (await client.stats()).state == "loading"
                with pytest.raises(OverloadedError, match="loading") as refused:
                    await collect(client, echo())
                assert refused.value.retry_after_s > 1
                await waiting
                assert (await client.stats()).state == "ready"
                assert await text_from(client, echo()) == "abca"

    drive(main)


@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGABRT])
def test_a_killed_rank_ends_every_stream_at_once(signal_sent: signal.Signals) -> None:
    async def main() -> None:
        with fake_rank(step_s=0.01, sequences=4) as process:
            client = await ready(process)
            tasks = [asyncio.create_task(collect(client, echo(str(i), max_tokens=4000))) for i in range(8)]
            await asyncio.sleep(0.1)
            os.kill(process.pid, signal_sent)
            start = time.monotonic()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert time.monotonic() - start < 2
            assert [type(r) for r in results] == [ReplicaDied] * 8
            assert client.dead is not None
            assert client.dead.cause == "disconnected"
            with pytest.raises(ReplicaDied):
                await client.stats()
            await client.close()

    drive(main)


@pytest.mark.slow
def test_a_rank_that_stops_answering_the_network_is_given_up() -> None:
    async def main() -> None:
        with fake_rank(step_s=0.01) as process:
            client = await ready(process)
            os.kill(process.pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(10):
                    assert (await client.wait_dead()).cause == "disconnected"
            finally:
                os.kill(process.pid, signal.SIGCONT)
                await client.close()

    drive(main)


def test_a_failed_step_ends_the_rank_and_says_why() -> None:
    async def main() -> None:
        with fake_rank(step_s=0.005, fail_at_step=5) as process:
            client = await ready(process)
            with pytest.raises(ReplicaDied, match="planted failure") as died:
                await collect(client, echo(max_tokens=100))
            assert died.value.cause == "step_failed"
            await until(lambda: process.poll() is not None, 5)
            assert process.poll() == 1
            await client.close()

    drive(main)


def test_what_a_dying_rank_said_is_read_to_the_end() -> None:
    async def main() -> None:
        with fake_rank(fail_at_step=600) as process:
            client = await ready(process)
            received: list[str] = []

            async def read() -> None:
                async for emission in client.stream(echo(max_tokens=4000)):
                    received.append(emission.text)
                    if len(received) == 1:
                        time.sleep(1)  # noqa: ASYNC251 - the event loop is busy while the rank sends and dies

            with pytest.raises(ReplicaDied, match="planted failure"):
                await read()
            assert len(received) == 599
            await client.close()

    drive(main)


def test_a_hanging_step_shows_as_no_answer_and_is_killed() -> None:
    async def main() -> None:
        with fake_rank(hang_at_step=2) as process:
            client = await ready(process)
            task = asyncio.create_task(collect(client, echo()))
            await asyncio.sleep(0.2)
            with pytest.raises(TimeoutError):
                await client.stats(timeout_s=0.3)
            assert client.dead is None
            assert await asyncio.to_thread(process.stop, 0.3) == -signal.SIGKILL
            with pytest.raises(ReplicaDied):
                await task
            await client.close()

    drive(main)


@pytest.mark.slow
def test_a_long_step_is_not_a_death() -> None:
    """Heartbeats come from the socket's own thread, also while the engine's thread computes."""

    async def main() -> None:
        with fake_rank(step_s=7.5) as process:
            client = await ready(process)
            assert await text_from(client, echo(max_tokens=2)) == "ab"
            await client.close()

    drive(main)


def test_an_idle_rank_uses_no_cpu() -> None:
    async def main() -> None:
        with fake_rank() as process:
            client = await ready(process)
            await text_from(client, echo())
            await asyncio.sleep(0.2)
            before = cpu_seconds(process.pid)
            await asyncio.sleep(3)
            assert cpu_seconds(process.pid) - before <= 0.03
            await client.close()

    drive(main)


@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        ({"load_error": "config:model.path is empty"}, ConfigError, "model.path is empty"),
        ({"load_error": "setup:too little memory"}, SetupError, "too little memory"),
        ({"load_error": "other:boom"}, DraftwingError, "RuntimeError: boom"),
        ({"unknown": 1}, DraftwingError, "unknown"),
    ],
)
def test_a_rank_that_fails_to_load_says_why(script: dict[str, Any], error: type[DraftwingError], text: str) -> None:
    with fake_rank(**script) as process:
        with pytest.raises(DraftwingError, match=text) as failed:
            process.wait_ready(START_S)
        assert type(failed.value) is error
        assert process.poll() == error.exit_code


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (RankPlace(2, world_size=2), "rank 2 of 2: ranks go from 0"),
        (RankPlace(1, world_size=2), "rank 1 needs the address of rank 0's store"),
    ],
)
def test_a_place_that_there_is_not_is_a_config_error(place: RankPlace, message: str) -> None:
    with RankProcess("{}", factory=FACTORY, place=place) as process, pytest.raises(ConfigError, match=message):
        process.wait_ready(START_S)


def test_a_rank_killed_while_loading_is_reported() -> None:
    with fake_rank(load_s=30) as process, pytest.raises(DraftwingError, match="SIGKILL"):
        process.wait_ready(START_S, lambda _: os.kill(process.pid, signal.SIGKILL))


def test_a_rank_not_ready_in_time_is_stopped() -> None:
    with fake_rank(load_s=30) as process:
        start = time.monotonic()
        with pytest.raises(SetupError, match="not ready in time"):
            process.wait_ready(1.0)
        assert time.monotonic() - start < 5
        assert not running(process.pid)


def test_stopping_while_loading_is_quick_and_clean() -> None:
    with fake_rank(load_s=30) as process:

        def stop(_: str) -> None:
            assert process.stop() == 0

        start = time.monotonic()
        with pytest.raises(DraftwingError, match="exit code 0"):
            process.wait_ready(START_S, stop)
        assert time.monotonic() - start < 5


PARENT_PROGRAM = """
import json, sys, time
from tests.integration.channel_tools import fake_rank, echo, collect
from draftwing.parallel.client import EngineClient
import asyncio

script = json.loads(sys.argv[1])
process = fake_rank(**script)
print(process.pid, flush=True)

async def main():
    client = await EngineClient.connect(process.wait_ready(20))
    print("ready", flush=True)
    await collect(client, echo(max_tokens=4000))

asyncio.run(main())
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("script", "wait_for"),
    [
        ('{"load_s": 30}', 1),
        ('{"step_s": 0.01}', 2),
        pytest.param('{"hang_at_step": 1}', 2, marks=pytest.mark.slow),
    ],
    ids=["loading", "serving", "hanging"],
)
def test_a_rank_ends_with_its_parent(script: str, wait_for: int) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", PARENT_PROGRAM, script]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert parent.stdout is not None
        lines = [parent.stdout.readline().strip() for _ in range(wait_for)]
    finally:
        parent.kill()
        parent.wait()
    pid = int(lines[0])
    asyncio.run(until(lambda: not running(pid), 10))
