"""A rank that is steered while it serves: a profile is used between two steps or refused by field, drafting pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from draftwing.config import Config
from draftwing.core import Request, SamplingParams
from draftwing.decisions.log import read_log
from draftwing.engine.build import build_engine
from draftwing.engine.identity import profile_key
from draftwing.parallel.client import EngineClient
from draftwing.parallel.endpoint import Endpoint
from draftwing.parallel.messages import RankStats
from draftwing.parallel.place import RankPlace
from draftwing_serve.rank_actor import DEFAULT_FACTORY, RankActor
from draftwing_tuner.publish import publish
from tests.integration.serve_tools import make_model
from tests.unit.tuner.test_publish import ACCEPTANCE, COSTS, SCHEDULE

READY_S, TOKENS = 120, 200


@pytest.fixture
def config(tmp_path: Path) -> Config:
    model = make_model(tmp_path / "tiny")
    return Config.model_validate(
        {
            "model": {"path": str(model), "device": "cpu", "dtype": "float32", "cpu_threads": 1},
            "drafters": [{"name": "lookup", "method": "ngram"}],
            "policy": {"mode": "adaptive", "profile": str(tmp_path / "profiles"), "log": str(tmp_path / "log")},
            "cache": {"tokens": 4096},
        }
    )


def key_of(config: Config) -> dict[str, str]:
    off = config.policy.model_copy(update={"mode": "off", "profile": None, "log": None})
    plain = config.model_copy(update={"policy": off})
    return profile_key(config, build_engine(plain))


def published(config: Config, key: dict[str, str], us: float) -> str:
    """us: added to every cost, so that each call's profile is another one."""
    costs = tuple(replace(cost, median_us=cost.median_us + us) for cost in COSTS)
    return publish(
        str(config.policy.profile),
        key,
        costs=costs,
        cost_fit=[{"term": "constant", "at": 0.0, "coef": 9.0}],
        acceptance=ACCEPTANCE,
        schedule=SCHEDULE,
        block=True,
        about={},
    )


@pytest.fixture
def actor(config: Config) -> Iterator[RankActor]:
    published(config, key_of(config), 0.0)
    actor = RankActor(config.model_dump_json(), DEFAULT_FACTORY, RankPlace(host="127.0.0.1"))
    yield actor
    actor.stop()


def endpoint_of(actor: RankActor) -> Endpoint:
    seen, endpoint = 0, None
    while True:
        states = actor.states(seen, READY_S)
        assert states, "the rank is not ready in time"
        seen += len(states)
        for state in states:
            assert state["state"] != "failed", state
            if state["state"] == "listening":
                endpoint = Endpoint.from_dict(state["endpoint"])
            if state["state"] == "ready":
                assert endpoint is not None
                return endpoint


def test_a_running_engine_is_steered(actor: RankActor, config: Config) -> None:
    endpoint, key = endpoint_of(actor), key_of(config)
    params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)

    async def decode(client: EngineClient, name: str, profile: dict[str, str] | None = None) -> tuple[list[int], str]:
        """The tokens; with a profile, one that is published when ten steps are done, and what the rank said of it."""
        tokens: list[int] = []
        said = "not asked"
        number = 0
        async for emission in client.stream(Request(name, [5, 9, 5, 9, 5], params)):
            tokens += emission.token_ids
            number += 1
            if number == 10 and profile is not None:
                published(config, profile, float(len(name)))
                said = await asyncio.to_thread(actor.use_profile)
        return tokens, said

    async def run() -> list[RankStats]:
        client = await EngineClient.connect(endpoint)
        seen = [await client.stats()]
        plain, _ = await decode(client, "first")
        tokens, said = await decode(client, "right one", key)
        assert (tokens, said) == (plain, "")
        seen.append(await client.stats())
        tokens, said = await decode(client, "wrong", key | {"dtype": "bfloat16"})
        assert tokens == plain
        assert "dtype is 'bfloat16' there and 'float32' here" in said
        seen.append(await client.stats())
        counted = []
        for reason in ("paused by a test", ""):
            assert await asyncio.to_thread(actor.pause, reason) == ""
            tokens, _ = await decode(client, f"with {reason}")
            assert tokens == plain
            stats = await client.stats()
            assert stats.policy is not None
            assert stats.policy.paused == bool(reason)
            assert not reason or stats.policy.reason == reason
            counted.append(stats.counters.draft_tokens)
        assert seen[-1].counters.draft_tokens == counted[0] < counted[1]
        await client.close()
        return [*seen, stats]

    before, after, refused, last = asyncio.run(asyncio.wait_for(run(), 120))
    digests = [each.policy.profile for each in (before, after, refused) if each.policy is not None]
    assert len(digests) == 3
    assert digests[0] != digests[1] == digests[2]
    logs = [read_log(Path(f"{config.policy.log}{end}")) for end in (".1", "")]
    assert [origin.digest for origin, _ in logs] == digests[:2]
    assert sum(len(steps) for _, steps in logs) == last.counters.steps
    assert [each.policy_generation for each in (before, after, last)] == [0, 1, 1]
