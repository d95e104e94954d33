"""Two rank processes without Ray: they serve together, end together, and the death of either is clear."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import build_engine
from draftwing.parallel.client import EngineClient, ReplicaDied
from draftwing.parallel.place import RankPlace
from draftwing.parallel.process import RankProcess
from draftwing.testing.run_engine import run_to_end
from tests.integration.channel_tools import client_of, collect, drive, until
from tests.tiny_models import golden

START_S = 120
ASKED = SamplingParams(max_tokens=400, temperature=0.7, seed=5, ignore_eos=True)


def config(**parallel: int) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(golden("llama8")), "cpu_threads": 1, "compile": False},
            "parallel": parallel,
            "drafters": [{"method": "ngram"}],
            "cache": {"tokens": 1024},
        }
    )


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[RankProcess, RankProcess, EngineClient]]:
    text = config(tensor=2).model_dump_json()
    with RankProcess(text, place=RankPlace(0, 2)) as lead:
        waiting = asyncio.create_task(asyncio.to_thread(lead.wait_ready, START_S))
        await until(lambda: lead.store != "" or waiting.done(), START_S)
        with RankProcess(text, place=RankPlace(1, 2, lead.store)) as other:
            async with client_of(await waiting) as client:
                yield lead, other, client


@pytest.mark.slow
def test_they_serve_what_one_rank_does_and_stop_together() -> None:
    expected = run_to_end(build_engine(config()), [Request("x", [3, 4, 5], ASKED)])["x"].tokens

    async def main() -> None:
        async with pair() as (lead, other, client):
            got = await collect(client, Request("x", [3, 4, 5], ASKED))
            assert [token for emission in got for token in emission.token_ids] == expected
            await client.shutdown()
            assert (await client.wait_dead()).cause == "shutdown"
            await until(lambda: lead.poll() == 0 and other.poll() == 0, 60)

    drive(main, within_s=3 * START_S)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_neither_outlives_the_other(victim: int) -> None:
    async def main() -> None:
        async with pair() as (lead, other, client):
            stream = client.stream(Request("x", [3, 4, 5], ASKED))
            await anext(stream)
            killed, left = (lead, other) if victim == 0 else (other, lead)
            os.kill(killed.pid, signal.SIGKILL)
            with pytest.raises(ReplicaDied) as died:
                async for _ in stream:
                    pass
            assert died.value.cause == ("disconnected" if victim == 0 else "rank_lost")
            assert victim == 0 or "another rank of this replica is gone" in str(died.value)
            await until(lambda: left.poll() == 1, 60)

    drive(main, within_s=3 * START_S)
