"""The two dashboards: *overview* says how requests fare, *speculation* whether drafting pays and why."""

from __future__ import annotations

from draftwing_dashboards.grafana import PREFIX, Dashboard, Panel, Query

RATE = "$__rate_interval"


def rate(metric: str, by: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped}(rate({PREFIX}{metric}[{RATE}]))"


def share(part: str, whole: str) -> str:
    return f"{rate(part)} / {rate(whole)}"


def quantiles(metric: str) -> list[Query]:
    """Median and tail of a histogram."""
    buckets = f"sum by (le) (rate({PREFIX}{metric}_bucket[{RATE}]))"
    return [Query(f"histogram_quantile({q}, {buckets})", f"p{int(q * 100)}") for q in (0.5, 0.9, 0.99)]


DRAFTS = rate("spec_decode_num_drafts_total")
ACCEPTED_BY_DEPTH = f"sum by (position) (rate({PREFIX}spec_decode_num_accepted_tokens_per_pos_total[{RATE}]))"

OVERVIEW = Dashboard(
    "draftwing-overview",
    "Draftwing: overview",
    "Requests, latency, load and failures of the service.",
    [
        (
            "Now",
            [
                Panel(
                    "Replicas",
                    [Query(f"sum({PREFIX}replicas)")],
                    "Engines that gateways are connected to.",
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Tokens per second",
                    [Query(rate("generation_tokens_total"))],
                    "Tokens sent to clients.",
                    kind="stat",
                    width=5,
                    height=4,
                ),
                Panel(
                    "Acceptance length",
                    [Query(f"1 + {share('spec_decode_num_accepted_tokens_total', 'spec_decode_num_drafts_total')}")],
                    "Tokens committed per verify that carried a draft, the bonus token included. 1: no gain.",
                    kind="stat",
                    width=5,
                    height=4,
                    idle=True,
                ),
                Panel(
                    "Requests in flight",
                    [Query(f"sum({PREFIX}requests_in_flight)")],
                    "Being answered now.",
                    kind="stat",
                    width=5,
                    height=4,
                ),
                Panel(
                    "Failed requests",
                    [Query(f'sum(rate({PREFIX}http_requests_total{{status=~"5.."}}[{RATE}])) or vector(0)')],
                    "Answers of 500 and above a second.",
                    kind="stat",
                    width=5,
                    height=4,
                    unit="reqps",
                ),
            ],
        ),
        (
            "Latency",
            [
                Panel(
                    "Time to first token",
                    quantiles("time_to_first_token_seconds"),
                    "From the request's arrival to its first chunk.",
                    unit="s",
                ),
                Panel(
                    "Time per output token",
                    quantiles("time_per_output_token_seconds"),
                    "First chunk to last, over the tokens after the first chunk.",
                    unit="s",
                ),
                Panel(
                    "Between chunks",
                    quantiles("inter_chunk_seconds"),
                    "A chunk carries all tokens of one verify.",
                    unit="s",
                ),
                Panel("Whole request", quantiles("request_duration_seconds"), "Arrival to last token.", unit="s"),
                Panel("Prompt tokens a request", quantiles("request_prompt_tokens"), "Length of prompts."),
                Panel("Output tokens a choice", quantiles("request_output_tokens"), "Length of outputs."),
            ],
        ),
        (
            "Load",
            [
                Panel(
                    "Tokens",
                    [Query(rate("generation_tokens_total"), "generated"), Query(rate("prompt_tokens_total"), "prompt")],
                    "Tokens a second.",
                ),
                Panel(
                    "Running and waiting",
                    [
                        Query(f"sum({PREFIX}requests_running)", "running"),
                        Query(f"sum({PREFIX}requests_waiting)", "waiting"),
                    ],
                    "Choices in engine steps, and queued.",
                ),
                Panel(
                    "KV cache in use",
                    [Query(f"max({PREFIX}kv_cache_use_ratio)", "fullest replica")],
                    "Share of the blocks. Near 1, sequences are preempted.",
                    unit="percentunit",
                ),
                Panel(
                    "Prefix cache hits",
                    [Query(share("prefix_cache_hits_total", "prefix_cache_queries_total"), "hits")],
                    "Share of prompt tokens whose keys and values were there already.",
                    unit="percentunit",
                    idle=True,
                ),
                Panel(
                    "Answers by status",
                    [Query(rate("http_requests_total", "status"), "{{status}}")],
                    "HTTP answers a second.",
                    unit="reqps",
                ),
                Panel(
                    "Trouble",
                    [
                        Query(rate("engine_preemptions_total"), "preemptions"),
                        Query(rate("replicas_lost_total"), "replicas lost"),
                        Query(rate("resumed_total"), "choices resumed"),
                    ],
                    "Events a second.",
                ),
            ],
        ),
    ],
)

SPECULATION = Dashboard(
    "draftwing-speculation",
    "Draftwing: speculation",
    "Whether drafting pays, how deep it is accepted, and where the time goes.",
    [
        (
            "Does it pay",
            [
                Panel(
                    "Acceptance length",
                    [
                        Query(
                            f"1 + {share('spec_decode_num_accepted_tokens_total', 'spec_decode_num_drafts_total')}",
                            "tokens per verify with a draft",
                        )
                    ],
                    "The bonus token included. 1: no gain.",
                    idle=True,
                ),
                Panel(
                    "Tokens a step",
                    [Query(share("engine_tokens_total", "engine_steps_total"), "committed")],
                    "Committed by all sequences of a step.",
                ),
                Panel(
                    "Acceptance rate",
                    [
                        Query(
                            share("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"),
                            "of draft nodes",
                        )
                    ],
                    "Share of verified draft nodes that became output. Trees verify more nodes than can be accepted.",
                    unit="percentunit",
                    idle=True,
                ),
            ],
        ),
        (
            "What the policy knows",
            [
                Panel(
                    "Speedup over plain decoding",
                    [
                        Query(f"avg({PREFIX}policy_speedup_ratio)", "measured"),
                        Query(f"avg({PREFIX}policy_predicted_ratio)", "expected"),
                    ],
                    "Tokens over those that plain decoding would have made in the same time, in the guard's window.",
                    idle=True,
                ),
                Panel(
                    "Error of the cost model",
                    [Query(f"max({PREFIX}policy_cost_error_ratio)", "median, worst replica")],
                    "Relative error of predicted step times.",
                    unit="percentunit",
                    idle=True,
                ),
                Panel(
                    "Guard, operators and profiles",
                    [
                        Query(f"sum({PREFIX}policy_guard_tripped)", "replicas held off by the guard"),
                        Query(f"sum({PREFIX}policy_paused)", "replicas paused by an operator"),
                        Query(f"max({PREFIX}policy_generation)", "profiles taken while serving"),
                    ],
                    "Replicas on which speculation is held off, and how often a profile was loaded.",
                ),
            ],
        ),
        (
            "Drafts",
            [
                Panel(
                    "Accepted by depth",
                    [
                        Query(
                            f"{ACCEPTED_BY_DEPTH} / ignoring(position) group_left {DRAFTS}",
                            "depth {{position}}",
                        )
                    ],
                    "Share of drafts whose token at this depth (0: first) was accepted.",
                    unit="percentunit",
                    kind="bargauge",
                    idle=True,
                ),
                Panel(
                    "Draft nodes",
                    [
                        Query(rate("spec_decode_num_draft_tokens_total"), "verified"),
                        Query(rate("spec_decode_num_accepted_tokens_total"), "accepted"),
                        Query(rate("spec_decode_num_branched_tokens_total"), "accepted, not a first child"),
                    ],
                    "Nodes a second.",
                ),
                Panel(
                    "Nodes a draft",
                    [Query(share("spec_decode_num_draft_tokens_total", "spec_decode_num_drafts_total"), "nodes")],
                    "Mean size of the drafts that were verified.",
                    idle=True,
                ),
                Panel(
                    "Steps that draft",
                    [Query(share("spec_decode_num_drafts_total", "engine_steps_total"), "drafts a step")],
                    "Drafts verified a step: the batch size where every sequence drafts, 0 where none does.",
                ),
                Panel(
                    "Refused drafts",
                    [Query(rate("spec_decode_num_bad_drafts_total"), "refused")],
                    "Drafts that a drafter got wrong: they cost only themselves.",
                ),
            ],
        ),
        (
            "Where the time goes",
            [
                Panel(
                    "Engine time by part",
                    [Query(rate("engine_step_seconds_total", "part"), "{{part}}")],
                    "Seconds a second. draft, forward (the verify) and sample are the model's; the rest is ours.",
                    unit="s",
                    stacked=True,
                    width=12,
                ),
                Panel(
                    "Step",
                    [Query(share("engine_step_seconds_total", "engine_steps_total"), "mean")],
                    "Mean time of a step.",
                    unit="s",
                    width=12,
                ),
            ],
        ),
    ],
)

BOARDS = (OVERVIEW, SPECULATION)
