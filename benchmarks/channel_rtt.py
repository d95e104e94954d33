"""Cost of the channel to a rank: round trips and messages per second, with a rank process whose engine does nothing.

    python benchmarks/channel_rtt.py [--json]

rtt: a request of one token, from submit to its last emission (two messages). ping: one question to the engine thread.
streams: so many requests at once; each step is one message with one emission a request. Times on the wall clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from draftwing.core import Request, SamplingParams
from draftwing.parallel.client import EngineClient
from draftwing.parallel.process import RankProcess

FACTORY = "draftwing.testing.fake_engine:build_fake_engine"
WARM_UP, ROUNDS = 200, 3000
STREAMS, TOKENS = 64, 400


async def one_stream(client: EngineClient, request_id: str, tokens: int) -> None:
    async for _ in client.stream(Request(request_id, [65] * 32, SamplingParams(max_tokens=tokens))):
        pass


async def latencies(call: Callable[[], Awaitable[object]]) -> dict[str, float]:
    times = []
    for i in range(WARM_UP + ROUNDS):
        start = time.perf_counter()
        await call()
        if i >= WARM_UP:
            times.append(time.perf_counter() - start)
    times.sort()
    return {f"p{p}_ms": round(times[len(times) * p // 100] * 1e3, 4) for p in (50, 90, 99)}


async def measure() -> dict[str, dict[str, float]]:
    with RankProcess(json.dumps({"sequences": STREAMS, "queue": STREAMS}), factory=FACTORY) as process:
        client = await EngineClient.connect(await asyncio.to_thread(process.wait_ready, 60))
        ping = await latencies(client.stats)
        rtt = await latencies(lambda: one_stream(client, "r", 1))
        before = await client.stats()
        start = time.perf_counter()
        await asyncio.gather(*(one_stream(client, str(i), TOKENS) for i in range(STREAMS)))
        elapsed = time.perf_counter() - start
        steps = (await client.stats()).counters.steps - before.counters.steps
        await client.close()
    streams: dict[str, float] = {
        "streams": STREAMS,
        "messages_per_s": round(steps / elapsed),
        "emissions_per_s": round(STREAMS * TOKENS / elapsed),
    }
    return {"ping": ping, "rtt": rtt, "throughput": streams}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    args = parser.parse_args()
    result = asyncio.run(measure())
    if args.json:
        print(json.dumps({"schema": 1, **result}))
        return
    for name, figures in result.items():
        print(f"{name:<12}" + "  ".join(f"{key} {value:g}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
