"""`metrics.speculative_decoding`: a request's acceptance in the form that other servers' clients read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwing.core import AcceptanceSummary


def speculation_object(summaries: Sequence[AcceptanceSummary]) -> dict[str, Any]:
    """All choices of a request together.

    A step counts when it verified a draft; num_spec_tokens is the largest draft length used, and the histogram has one
    entry more: how many steps accepted exactly 0, 1, ... of their draft.
    """
    drafted = [count for summary in summaries for count in summary.drafted]
    accepted = [count for summary in summaries for count in summary.accepted]
    depth = max((summary.max_depth for summary in summaries), default=0)
    depth = max(depth, max(accepted, default=0))
    histogram = [0] * (depth + 1)
    for count in accepted:
        histogram[count] += 1
    steps, total_drafted, total_accepted = len(accepted), sum(drafted), sum(accepted)
    return {
        "mean_acceptance_length": 1 + total_accepted / steps if steps else 1.0,
        "draft_acceptance_rate": total_accepted / total_drafted if total_drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": total_accepted,
        "num_draft_tokens": total_drafted,
        "num_spec_tokens": depth,
        "num_verify_steps": sum(summary.verifies for summary in summaries),
    }
