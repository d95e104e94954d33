"""What the gateway measures, and the engines' counters, as Prometheus metrics: `draftwing_*`, base units.

A verify commits several tokens at once, so two speeds are told apart: the gap between chunks, and the time per token.
Buckets start at half a millisecond, which a small model on a CPU already needs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draftwing import __version__
from draftwing.core import Emission, EngineCounters
from draftwing.parallel.messages import RankStats
from draftwing_serve.prepare import Job

LATENCY_BUCKETS = (
    0.0005, 0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.4, 0.6, 1, 1.5, 2.5, 5, 10,
)  # fmt: skip
WAIT_BUCKETS = (*LATENCY_BUCKETS, 20, 40, 80, 160, 320, 640, 1280, 2560)
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)

# Metric, its help, and the field of EngineCounters.
ENGINE_COUNTERS = (
    ("draftwing_engine_steps", "Engine steps.", "steps"),
    ("draftwing_engine_tokens", "Tokens committed by the engine.", "generated_tokens"),
    ("draftwing_engine_preemptions", "Sequences put back to wait because the KV cache was full.", "preemptions"),
    ("draftwing_prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_queries"),
    ("draftwing_prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hits"),
    ("draftwing_spec_decode_num_drafts", "Drafts verified.", "drafts"),
    ("draftwing_spec_decode_num_draft_tokens", "Draft nodes verified.", "draft_tokens"),
    ("draftwing_spec_decode_num_accepted_tokens", "Draft tokens accepted.", "accepted_tokens"),
    ("draftwing_spec_decode_num_branched_tokens", "Accepted draft tokens that were no first child.", "branched_tokens"),
    ("draftwing_spec_decode_num_bad_drafts", "Drafts refused by the engine.", "bad_drafts"),
)
# Gauge after draftwing_policy_, its help, and the field of PolicyStatus.
POLICY_GAUGES = (
    ("speedup_ratio", "Tokens over those of plain decoding in the same time, of late.", "ratio"),
    ("speedup_half_width", "Half of the 95 % interval of the speedup.", "half_width"),
    ("predicted_ratio", "The speedup that the cost and acceptance models expected.", "predicted"),
    ("cost_error_ratio", "Median relative error of predicted step times.", "cost_error"),
    ("guard_tripped", "1 while the guard holds speculation off.", "tripped"),
    ("paused", "1 while an operator holds speculation off.", "paused"),
)
STEP_PARTS = ("schedule", "draft", "forward", "sample", "commit")


class GatewayMetrics:
    """One registry a gateway. Nothing here is global, so several may live in one process."""

    def __init__(self) -> None:
        # Else every counter has one more series, which nobody plots.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.engines = EngineTotals()
        self.registry.register(self.engines)

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=self.registry)

        self.http = counter("draftwing_http_requests", "Answers by route and status.", ("method", "route", "status"))
        self.outcomes = counter("draftwing_requests", "Generation requests by how they ended.", ("endpoint", "outcome"))
        self.finished = counter("draftwing_choices", "Choices by finish reason.", ("finish_reason",))
        self.prompt_tokens = counter("draftwing_prompt_tokens", "Prompt tokens of accepted requests.")
        self.generation_tokens = counter("draftwing_generation_tokens", "Tokens generated for clients.")
        self.replicas_lost = counter("draftwing_replicas_lost", "Connections to engines that ended.")
        self.resumed = counter("draftwing_resumed", "Choices that went on after their replica was lost.")
        self.in_flight = Gauge("draftwing_requests_in_flight", "Requests being answered.", registry=self.registry)
        self.ttft = histogram("draftwing_time_to_first_token_seconds", "Request to first chunk.", WAIT_BUCKETS)
        self.gap = histogram("draftwing_inter_chunk_seconds", "Between two chunks of one choice.", LATENCY_BUCKETS)
        self.per_token = histogram(
            "draftwing_time_per_output_token_seconds", "First chunk to last, by the tokens after the first chunk.",
            LATENCY_BUCKETS,
        )  # fmt: skip
        self.duration = histogram("draftwing_request_duration_seconds", "Request to last chunk.", WAIT_BUCKETS)
        self.prompt_length = histogram("draftwing_request_prompt_tokens", "Prompt tokens a request.", TOKEN_BUCKETS)
        self.output_length = histogram("draftwing_request_output_tokens", "Output tokens a choice.", TOKEN_BUCKETS)
        info = Gauge("draftwing_build_info", "Version of this server.", ("version",), registry=self.registry)
        info.labels(__version__).set(1)

    def watch(self, job: Job) -> RequestWatch:
        return RequestWatch(self, job)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)


@dataclass(slots=True)
class ChoiceClock:
    first: float | None = None
    latest: float = 0.0
    first_tokens: int = 0
    tokens: int = 0


class RequestWatch:
    """One request's clocks. Call `emission` as each comes and `done` once."""

    def __init__(self, metrics: GatewayMetrics, job: Job) -> None:
        self._metrics = metrics
        self._endpoint = "chat" if job.chat else "completions"
        self._begun = time.monotonic()
        self._choices = [ChoiceClock() for _ in job.choices]
        self._ttft: float | None = None
        metrics.in_flight.inc()
        metrics.prompt_length.observe(job.prompt_tokens)
        self._prompt_tokens = job.prompt_tokens

    @property
    def started(self) -> bool:
        """Something has been emitted."""
        return self._ttft is not None

    def emission(self, index: int, emission: Emission) -> None:
        now, clock, metrics = time.monotonic(), self._choices[index], self._metrics
        count = len(emission.token_ids)
        if self._ttft is None:
            self._ttft = now - self._begun
            metrics.ttft.observe(self._ttft)
            metrics.prompt_tokens.inc(self._prompt_tokens)
        if clock.first is None:
            clock.first, clock.first_tokens = now, count
        elif count:
            metrics.gap.observe(now - clock.latest)
        clock.latest = now
        clock.tokens += count
        metrics.generation_tokens.inc(count)
        if emission.finish_reason is not None:
            self._finished(clock, emission.finish_reason)

    def done(self, outcome: str) -> None:
        self._metrics.in_flight.dec()
        self._metrics.outcomes.labels(self._endpoint, outcome).inc()
        if outcome == "completed":
            self._metrics.duration.observe(time.monotonic() - self._begun)

    def timings(self) -> dict[str, float]:
        """For the answer's `metrics` object, in seconds."""
        total = time.monotonic() - self._begun
        return {"time_to_first_token_s": round(self._ttft or total, 6), "total_s": round(total, 6)}

    def _finished(self, clock: ChoiceClock, reason: str) -> None:
        self._metrics.finished.labels(reason).inc()
        self._metrics.output_length.observe(clock.tokens)
        after_first = clock.tokens - clock.first_tokens
        if after_first and clock.first is not None:
            self._metrics.per_token.observe((clock.latest - clock.first) / after_first)


class EngineTotals(Collector):
    """The engines' counters, summed. An engine that is gone keeps what it counted, so that no total ever falls."""

    def __init__(self) -> None:
        self._live: dict[str, RankStats] = {}
        self._gone = EngineCounters()

    def update(self, stats: dict[str, RankStats]) -> None:
        """stats: by endpoint, of the engines that are up."""
        for endpoint in self._live.keys() - stats.keys():
            _add(self._gone, self._live[endpoint].counters)
        self._live = dict(stats)

    def collect(self) -> Iterator[Metric]:
        total = EngineCounters()
        _add(total, self._gone)
        for stats in self._live.values():
            _add(total, stats.counters)
        for name, text, attribute in ENGINE_COUNTERS:
            yield CounterMetricFamily(name, text, value=getattr(total, attribute))
        positions = CounterMetricFamily(
            "draftwing_spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by depth in the draft (0: first).",
            labels=["position"],
        )
        for position, count in enumerate(total.accepted_per_depth):
            positions.add_metric([str(position)], count)
        yield positions
        parts = CounterMetricFamily("draftwing_engine_step_seconds", "Time in steps, by part.", labels=["part"])
        for part in STEP_PARTS:
            parts.add_metric([part], getattr(total, f"{part}_s"))
        yield parts
        yield from self._gauges()

    def _gauges(self) -> Iterator[Metric]:
        live = self._live.values()
        yield GaugeMetricFamily("draftwing_replicas", "Engines connected.", value=len(live))
        yield GaugeMetricFamily(
            "draftwing_requests_running", "Choices in engine steps.", value=sum(s.running for s in live)
        )
        yield GaugeMetricFamily("draftwing_requests_waiting", "Choices queued.", value=sum(s.waiting for s in live))
        use = GaugeMetricFamily(
            "draftwing_kv_cache_use_ratio", "Share of KV blocks in use, 0 to 1.", labels=["replica"]
        )
        for index, stats in enumerate(live):
            use.add_metric([str(index)], stats.kv_use)
        yield use
        yield from self._policies()

    def _policies(self) -> Iterator[Metric]:
        """By replica: what each policy decides from. A replica that can't tell yet has no sample."""
        info = GaugeMetricFamily(
            "draftwing_policy_info",
            "Mode, drafter and profile in use.",
            labels=["replica", "mode", "drafter", "profile"],
        )
        families = {
            name: GaugeMetricFamily(f"draftwing_policy_{name}", text, labels=["replica"])
            for name, text, _ in POLICY_GAUGES
        }
        generation = GaugeMetricFamily(
            "draftwing_policy_generation", "Profiles taken while serving.", labels=["replica"]
        )
        why = GaugeMetricFamily(
            "draftwing_policy_reason_info", "Why the last step did so.", labels=["replica", "reason"]
        )
        for index, stats in enumerate(self._live.values()):
            generation.add_metric([str(index)], stats.policy_generation)
            if (policy := stats.policy) is None:
                continue
            info.add_metric([str(index), policy.mode, policy.drafter, policy.profile], 1)
            why.add_metric([str(index), policy.reason], 1)
            for name, _, attribute in POLICY_GAUGES:
                if (value := getattr(policy, attribute)) is not None:
                    families[name].add_metric([str(index)], float(value))
        yield from (info, why, generation)
        yield from families.values()


def _add(total: EngineCounters, more: EngineCounters) -> None:
    for name in EngineCounters.__dataclass_fields__:
        value = getattr(more, name)
        if isinstance(value, list):
            own = getattr(total, name)
            own.extend([0] * (len(value) - len(own)))
            for index, count in enumerate(value):
                own[index] += count
        elif isinstance(value, dict):
            own = getattr(total, name)
            for key, count in value.items():
                own[key] = own.get(key, 0) + count
        else:
            setattr(total, name, getattr(total, name) + value)
