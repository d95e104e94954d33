"""Every model type that is accepted gives the logits of transformers' own eager attention, windows and all."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from draftwing.checkpoints import hf
from draftwing.checkpoints.supported import VERIFIED
from draftwing.core import IntArray
from draftwing.engine import attention
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.engine.runner import ModelRunner, probe_layers

VOCAB, SLOTS, LENGTH, WINDOW = 128, 256, 40, 8
# Every size that some config has, small; large initial weights, so that a wrong mask shows in the logits.
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.3,
    "sliding_window": WINDOW, "sliding_window_pattern": 2, "_sliding_window_pattern": 2, "use_sliding_window": True,
    "max_window_layers": 1, "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "decoder_sparse_step": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
    "query_pre_attn_scalar": 16, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu")
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "qwen2_moe": {"use_sliding_window": False},  # with windows it is refused
    **{kind: {"head_dim": None, "num_key_value_heads": 4} for kind in LATENT},
}


def small_config(kind: str) -> Any:
    base = AutoConfig.for_model(kind)
    sizes = {key: value for key, value in SMALL.items() if hasattr(base, key)}
    sizes.update(EXCEPTIONS.get(kind, {}))
    return type(base)(**{key: value for key, value in sizes.items() if value is not None})


def pair(kind: str) -> tuple[Any, Any, Any]:
    """The config, a model with eager attention, and one of the same weights with ours."""
    torch.manual_seed(0)
    config = small_config(kind)
    auto: Any = AutoModelForCausalLM
    eager = auto.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    ours = auto.from_config(copy.deepcopy(config), attn_implementation=attention.NAME).eval()
    ours.load_state_dict(eager.state_dict())
    return config, eager, ours


def rounding(eager: Any, tokens: IntArray, expected: torch.Tensor) -> torch.Tensor:
    """[rows]: how far a row's logits move when each weight is rounded another way, by half a unit in the last place.

    Some rows of a random model are that sensitive, and then the order in which a CPU adds decides as much.
    """
    moved = []
    for seed in range(3):
        other, draw = copy.deepcopy(eager), torch.Generator().manual_seed(seed)
        with torch.inference_mode():
            for weight in other.parameters():
                weight.mul_(1 + 2**-24 * torch.randn(weight.shape, generator=draw))
            logits = other(torch.from_numpy(tokens)[None], use_cache=False).logits[0]
        moved.append((logits - expected).abs().amax(1))
    return torch.stack(moved).amax(0)


@pytest.mark.parametrize("kind", VERIFIED)
def test_same_logits_as_eager(kind: str) -> None:
    hf.quiet()
    attention.register()
    config, eager, ours = pair(kind)
    device = torch.device("cpu")
    layers = probe_layers(ours, device)
    runner = ModelRunner(ours, slots=SLOTS, layers=layers, device=device, dtype=torch.float32, vocab_size=VOCAB)
    rng = np.random.default_rng(0)
    tokens, slots = rng.integers(3, VOCAB, LENGTH), rng.permutation(SLOTS)[:LENGTH]
    with torch.inference_mode():
        expected = eager(torch.from_numpy(tokens)[None], use_cache=False).logits[0]

    def rows(start: int, end: int) -> SequenceRows:
        return SequenceRows(tokens[start:end], chain_parents(end - start), slots[:end], start, end - start)

    found = torch.cat([runner.forward([rows(0, 23)]), runner.forward([rows(23, 39)]), runner.forward([rows(39, 40)])])
    assert len(layers) == config.num_hidden_layers
    assert expected.abs().max() > 0.1
    allowed = rounding(eager, tokens, expected).clamp(min=1e-5 * max(1.0, float(expected.abs().max())))
    assert ((found - expected).abs().amax(1) <= allowed).all()
