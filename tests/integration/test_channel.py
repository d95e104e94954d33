"""The channel between clients and a rank: streams, refusals, isolation, strangers, and clients that go wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import aclosing

import msgpack
import pytest
import zmq

from draftwing.errors import OverloadedError, RequestError, SetupError
from draftwing.parallel import wire
from draftwing.parallel.channel import ChannelServer
from draftwing.parallel.client import EngineClient, ReplicaDied
from draftwing.parallel.endpoint import Endpoint, KeyPair
from draftwing.parallel.messages import Beat, Events, Lost, Ping, Pong, Submit
from tests.integration.channel_tools import (
    client_of,
    collect,
    drive,
    echo,
    echoed,
    raw_dealer,
    receive,
    serving,
    text_from,
    until,
)


def test_a_stream_brings_every_step_and_the_end() -> None:
    async def main() -> None:
        with serving(tokens_per_step=3) as rank:
            async with client_of(rank.endpoint) as client:
                emissions = await collect(client, echo("mine", "abc", 7))
        assert [e.text for e in emissions] == ["abc", "abc", "a"]
        assert [e.finish_reason for e in emissions] == [None, None, "length"]
        assert {e.request_id for e in emissions} == {"mine"}
        assert emissions[-1].summary is not None
        assert emissions[-1].summary.verifies == 3

    drive(main)


def test_many_streams_share_a_client() -> None:
    async def main() -> None:
        with serving(sequences=16) as rank:
            async with client_of(rank.endpoint) as client:
                prompts = [f"<{i}>" for i in range(60)]
                texts = await asyncio.gather(*(text_from(client, echo(p, p, 12)) for p in prompts))
        assert texts == [echoed(p, 12) for p in prompts]

    drive(main)


def test_all_of_a_step_is_one_message() -> None:
    with serving(step_s=0.02, sequences=8) as rank, raw_dealer(rank.endpoint) as dealer:
        for i in range(8):
            dealer.send(wire.encode(Submit(echo(str(i), max_tokens=10))))
        sizes: list[int] = []
        while sum(sizes) < 80:
            sizes.append(len(receive(dealer, Events).emissions))
    assert max(sizes) == 8
    assert len(sizes) <= 20


def test_leaving_a_stream_early_cancels_it_within_a_step() -> None:
    async def main() -> None:
        with serving(step_s=0.02) as rank:
            async with client_of(rank.endpoint) as client:
                async with aclosing(client.stream(echo(max_tokens=1000))) as stream:
                    async for _ in stream:
                        break
                await until(lambda: bool(rank.engine.cancelled), 1)
                assert rank.engine.counters.generated_tokens <= 3
                assert not rank.engine.busy

    drive(main)


def test_cancelling_the_task_cancels_the_request() -> None:
    async def main() -> None:
        with serving(step_s=0.01) as rank:
            async with client_of(rank.endpoint) as client:
                task = asyncio.create_task(collect(client, echo(max_tokens=1000)))
                await until(lambda: rank.engine.running == 1, 2)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert task.cancelled()
                await until(lambda: len(rank.engine.cancelled) == 1, 1)

    drive(main)


def test_a_finished_stream_is_not_cancelled() -> None:
    async def main() -> None:
        with serving() as rank:
            async with client_of(rank.endpoint) as client:
                await collect(client, echo())
                await client.stats()
            assert rank.engine.cancelled == []

    drive(main)


def test_an_id_may_be_used_again_at_once() -> None:
    async def main() -> None:
        with serving(step_s=0.002) as rank:
            async with client_of(rank.endpoint) as client:
                for _ in range(20):
                    async with aclosing(client.stream(echo("same", "xyz", 1000))) as stream:
                        async for _ in stream:
                            break
                    assert await text_from(client, echo("same", "abc", 5)) == "abcab"

    drive(main)


def test_a_refusal_keeps_its_fields() -> None:
    async def main() -> None:
        with serving(context=10) as rank:
            async with client_of(rank.endpoint) as client:
                with pytest.raises(RequestError, match="context of 10") as refused:
                    await collect(client, echo(max_tokens=100))
                assert (refused.value.param, refused.value.code) == ("max_tokens", "context_length_exceeded")
                assert await text_from(client, echo(max_tokens=3)) == "abc"

    drive(main)


def test_overload_is_an_error_with_a_time_to_retry() -> None:
    async def main() -> None:
        with serving(sequences=1, queue=2, step_s=0.05) as rank:
            async with client_of(rank.endpoint) as client:
                results = await asyncio.gather(
                    *(collect(client, echo(str(i), max_tokens=3)) for i in range(8)), return_exceptions=True
                )
        refused = [r for r in results if isinstance(r, OverloadedError)]
        assert len(refused) >= 4
        assert refused[0].retry_after_s >= 1
        assert all(isinstance(r, (OverloadedError, list)) for r in results)

    drive(main)


def test_a_fault_in_taking_a_request_costs_that_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with serving() as rank:
            add = rank.engine.add
            monkeypatch.setattr(rank.engine, "add", lambda r: 1 / 0 if "bad" in r.id else add(r))
            async with client_of(rank.endpoint) as client:
                results = await asyncio.gather(
                    collect(client, echo("bad")), text_from(client, echo("good")), return_exceptions=True
                )
        assert "ZeroDivisionError" in str(results[0])
        assert results[1] == "abca"

    drive(main)


def test_two_clients_do_not_see_each_other() -> None:
    async def main() -> None:
        with serving(step_s=0.002) as rank:
            async with client_of(rank.endpoint) as one, client_of(rank.endpoint) as two:
                texts = await asyncio.gather(
                    *(text_from(one, echo(f"id{i}", "one", 30)) for i in range(4)),
                    *(text_from(two, echo(f"id{i}", "two", 30)) for i in range(4)),
                )
                assert texts == [echoed("one", 30)] * 4 + [echoed("two", 30)] * 4

    drive(main)


def test_a_client_cannot_cancel_what_another_runs() -> None:
    with serving(step_s=0.01) as rank, raw_dealer(rank.endpoint) as one, raw_dealer(rank.endpoint) as two:
        one.send(wire.encode(Submit(echo("x", max_tokens=20))))
        assert isinstance(wire.decode(one.recv()), Events | Beat)
        two.send(msgpack.packb([wire.PROTOCOL, 1, ["x"]]))
        two.send(msgpack.packb([wire.PROTOCOL, 1, ["0/x"]]))
        while receive(one, Events).emissions[0].finish_reason is None:
            pass
        assert rank.engine.cancelled == []


def test_one_requests_error_ends_that_request_alone() -> None:
    async def main() -> None:
        with serving(error_token=ord("!")) as rank:
            async with client_of(rank.endpoint) as client:
                bad, good = await asyncio.gather(
                    collect(client, echo("bad", "ab!", 9)), text_from(client, echo("good", "abc", 9))
                )
        assert (bad[-1].finish_reason, bad[-1].error) == ("error", "the logits of this request are not finite")
        assert good == "abcabcabc"

    drive(main)


def test_stats_tell_the_load() -> None:
    async def main() -> None:
        with serving(sequences=2, step_s=0.01) as rank:
            async with client_of(rank.endpoint) as client:
                assert (await client.stats()).last_step_age_s is None
                tasks = [asyncio.create_task(collect(client, echo(str(i), max_tokens=300))) for i in range(5)]
                await until(lambda: rank.engine.running == 2, 2)
                stats = await client.stats()
                assert (stats.running, stats.waiting, stats.kv_use, stats.pid) == (2, 3, 1.0, os.getpid())
                assert stats.counters.steps > 0
                assert stats.last_step_age_s is not None
                assert stats.last_step_age_s < 1
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    drive(main)


def test_draining_refuses_new_requests_and_finishes_old_ones() -> None:
    async def main() -> None:
        with serving(step_s=0.01) as rank:
            async with client_of(rank.endpoint) as client:
                old = asyncio.create_task(text_from(client, echo("old", "abc", 40)))
                await until(lambda: rank.engine.running == 1, 2)
                await client.drain()
                with pytest.raises(OverloadedError, match="draining"):
                    await collect(client, echo("new"))
                assert (await client.stats()).state == "draining"
                assert await old == echoed("abc", 40)

    drive(main)


def test_shutdown_tells_every_stream() -> None:
    async def main() -> None:
        with serving(step_s=0.01) as rank:
            async with client_of(rank.endpoint) as one, client_of(rank.endpoint) as two:
                task = asyncio.create_task(collect(one, echo(max_tokens=1000)))
                await until(lambda: rank.engine.running == 1, 2)
                await two.shutdown()
                with pytest.raises(ReplicaDied, match="told to shut down") as died:
                    await task
                assert died.value.cause == "shutdown"
                assert (await two.wait_dead()).cause == "shutdown"
                with pytest.raises(ReplicaDied):
                    await collect(one, echo())

    drive(main)


def test_closing_a_client_ends_its_streams_and_cancels_them() -> None:
    async def main() -> None:
        with serving(step_s=0.01) as rank:
            async with client_of(rank.endpoint) as client:
                task = asyncio.create_task(collect(client, echo(max_tokens=1000)))
                await until(lambda: rank.engine.running == 1, 2)
            with pytest.raises(ReplicaDied, match="closed"):
                await task
            await until(lambda: len(rank.engine.cancelled) == 1, 1)

    drive(main)


CLIENT_PROGRAM = """
import asyncio, json, sys
from draftwing.core import Request, SamplingParams
from draftwing.parallel.client import EngineClient
from draftwing.parallel.endpoint import Endpoint

async def main():
    client = await EngineClient.connect(Endpoint.from_dict(json.load(sys.stdin)))
    async def run(i):
        async for _ in client.stream(Request(f"r{i}", [65], SamplingParams(max_tokens=4000))):
            pass
    await asyncio.gather(*(run(i) for i in range(6)))

asyncio.run(main())
"""


def test_a_killed_clients_requests_are_cancelled_within_a_second() -> None:

    async def main() -> None:
        with serving(sequences=4, step_s=0.005) as rank:
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT_PROGRAM, stdin=subprocess.PIPE)
            try:
                assert child.stdin is not None
                child.stdin.write(json.dumps(rank.endpoint.to_dict()).encode())
                child.stdin.close()
                await until(lambda: rank.engine.running == 4 and rank.engine.waiting == 2, 20)
            finally:
                child.kill()
                await child.wait()
            await until(lambda: len(rank.engine.cancelled) == 6, 1)
            assert not rank.engine.busy

    drive(main)


def test_a_waiting_request_of_a_killed_client_is_cancelled_too() -> None:
    """Nothing is emitted for it, so only the beat can notice."""

    async def main() -> None:
        with serving(sequences=1, step_s=0.005) as rank:
            async with client_of(rank.endpoint) as client:
                task = asyncio.create_task(collect(client, echo("long", max_tokens=4000)))
                await until(lambda: rank.engine.running == 1, 2)
                with raw_dealer(rank.endpoint) as dealer:
                    dealer.send(wire.encode(Submit(echo("queued", max_tokens=5))))
                    await until(lambda: rank.engine.waiting == 1, 2)
                await until(lambda: rank.engine.waiting == 0, 1)
                assert rank.engine.running == 1
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    drive(main)


def test_a_slow_reader_is_dropped_and_told_and_nobody_waits() -> None:
    async def main() -> None:
        script = {"text_repeat": 200_000, "step_s": 0.002}
        with serving(send_queue=4, **script) as rank, raw_dealer(rank.endpoint, receive_queue=1) as dealer:
            dealer.send(wire.encode(Submit(echo("slow", max_tokens=4000))))
            async with client_of(rank.endpoint) as client:
                assert len(await collect(client, echo("quick", max_tokens=30))) == 30
                await until(lambda: len(rank.engine.cancelled) == 1, 5)
            assert receive(dealer, Lost).cause == "slow_reader"
            dealer.send(wire.encode(Ping(7)))
            assert receive(dealer, Pong).nonce == 7

    drive(main)


def test_garbage_from_a_client_is_counted_and_dropped() -> None:
    async def main() -> None:
        with serving() as rank, raw_dealer(rank.endpoint) as dealer:
            frames = [b"", b"\x00", os.urandom(1000), msgpack.packb([wire.PROTOCOL, 99, []]), b"\x91" * 5000]
            for frame in frames:
                dealer.send(frame)
            dealer.send_multipart([wire.encode(Ping(1)), b"more"])
            dealer.send(wire.encode(Events([])))  # valid, but only ranks say it
            dealer.send(wire.encode(Ping(5)))
            pong = receive(dealer, Pong)
            assert pong.nonce == 5
            assert pong.stats.bad_frames == len(frames) + 1
            async with client_of(rank.endpoint) as client:
                assert await text_from(client, echo()) == "abca"

    drive(main)


def test_another_protocol_gets_an_answer_that_names_ours() -> None:
    with serving() as rank, raw_dealer(rank.endpoint) as dealer:
        dealer.send(msgpack.packb(["draftwing-rank/0", 2, [1]]))
        assert isinstance(wire.decode(dealer.recv()), Beat)


def test_a_client_of_another_protocol_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with serving() as rank:
            encode = wire.encode
            other = msgpack.packb(["draftwing-rank/0", 8, []])
            monkeypatch.setattr(wire, "encode", lambda m: other if isinstance(m, Pong) else encode(m))
            with pytest.raises(SetupError, match="draftwing-rank/0"):
                await EngineClient.connect(rank.endpoint, timeout_s=5)

    drive(main)


def test_a_stranger_that_talks_no_zeromq_disturbs_nobody() -> None:
    async def main() -> None:
        with serving() as rank, socket.create_connection(("127.0.0.1", rank.channel.port)) as stranger:
            stranger.sendall(os.urandom(4096))
            async with client_of(rank.endpoint) as client:
                assert await text_from(client, echo()) == "abca"
                assert (await client.stats()).bad_frames == 0

    drive(main)


@pytest.mark.parametrize("wrong", ["server", "client"])
def test_a_wrong_key_is_refused(wrong: str) -> None:
    async def main() -> None:
        with serving() as rank:
            stranger = KeyPair.new()
            if wrong == "server":
                endpoint = dataclasses.replace(rank.endpoint, server_public=stranger.public)
            else:
                endpoint = dataclasses.replace(
                    rank.endpoint, client_public=stranger.public, client_secret=stranger.secret
                )
            start = time.monotonic()
            with pytest.raises(SetupError, match=r"refused the keys|no rank answers"):
                await EngineClient.connect(endpoint, timeout_s=2)
            assert time.monotonic() - start < 3
            async with client_of(rank.endpoint) as client:
                assert (await client.stats()).clients == 1

    drive(main)


def test_a_connection_without_keys_gets_nothing() -> None:
    with serving() as rank, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.rcvtimeo = 0, 700
        dealer.connect(rank.endpoint.address)
        dealer.send(wire.encode(Ping(1)))
        with pytest.raises(zmq.Again):
            dealer.recv()


def test_nobody_listening_is_a_setup_error() -> None:
    async def main() -> None:
        channel = ChannelServer()
        channel.close()
        with pytest.raises(SetupError, match="no rank answers"):
            await EngineClient.connect(channel.endpoint, timeout_s=0.5)

    drive(main)


def test_a_port_in_use_and_a_bare_wildcard_are_setup_errors() -> None:
    channel = ChannelServer()
    with pytest.raises(SetupError, match=f"can't listen on 127.0.0.1:{channel.port}"):
        ChannelServer(port=channel.port)
    channel.close()
    with pytest.raises(SetupError, match="advertise"):
        ChannelServer("0.0.0.0")


def test_an_endpoint_travels_as_json_and_hides_its_secret() -> None:
    channel = ChannelServer()
    channel.close()
    endpoint = channel.endpoint
    assert Endpoint.from_dict(endpoint.to_dict()) == endpoint
    assert endpoint.client_secret not in repr(endpoint)
    for broken in ({}, {**endpoint.to_dict(), "x": 1}, {**endpoint.to_dict(), "server_public": "short"}):
        with pytest.raises(SetupError):
            Endpoint.from_dict(broken)
