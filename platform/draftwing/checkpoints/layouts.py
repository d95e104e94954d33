"""Names of the tensors in published drafters, as patterns: what tells the layouts apart, and what each may hold.

The papers and repositories are named in `docs/drafters.md`.
"""

from __future__ import annotations

LAYER = (
    r"self_attn\.[qkvo]_proj\.(?:weight|bias)", r"self_attn\.[qk]_norm\.weight",
    r"mlp\.(?:gate|up|down)_proj\.(?:weight|bias)", r"(?:input|post_attention)_layernorm\.weight",
)  # fmt: skip
_LAYERS = tuple(rf"layers\.\d+\.{part}" for part in LAYER)
VOCABULARY = (r"embed_tokens\.weight", r"lm_head\.weight", r"d2t", r"t2d")

EAGLE = (
    *(rf"(?:midlayer|layers\.\d+)\.{part}" for part in (*LAYER, r"hidden_norm\.weight")),
    r"fc\.(?:weight|bias)", r"(?:norm|input_norm)\.weight", r"(?:fc_norm\.\d+|aux_norm_(?:low|mid|high))\.weight",
    *VOCABULARY,
)  # fmt: skip

# A projection of the target's hidden states and the norm after it, under the names of each publisher.
CONTEXTS = {
    "own": ("fc.weight", "hidden_norm.weight"),
    "encoder": ("encoder.fc.weight", "encoder.output_norm_enc.weight"),
    "angelspec": ("context_proj.weight", "context_norm.weight"),
}
DFLASH = (
    *_LAYERS, *(name.replace(".", r"\.") for names in CONTEXTS.values() for name in names),
    r"(?:final_)?norm\.weight", r"mask_embedding", *VOCABULARY,
)  # fmt: skip
DFLASH2 = (
    *DFLASH, r"layers\.\d+\.(?:attention|mlp)_conv\.(?:base_kernel|kernel_projection\.weight)",
    r"candidate_selector\.(?:predecessor|successor)_codebook(?:\.weight)?",
    r"candidate_selector\.hidden_projection\.weight",
)  # fmt: skip
DSPARK = (
    *DFLASH, r"markov_head\.markov_w[12]\.weight", r"markov_head\.(?:gate|joint)_proj\.(?:weight|bias)",
    r"confidence_head\.proj\.(?:weight|bias)",
)  # fmt: skip

# Medusa's, as (block of a head, projection of a head). "merged" lies among the target's own tensors.
MEDUSA = {
    "merged": (r"medusa_head\.(\d+)\.(\d+)\.linear\.(weight|bias)", r"medusa_head\.(\d+)\.(\d+)\.weight"),
    "heads": (r"(\d+)\.(\d+)\.linear\.(weight|bias)", r"(\d+)\.(\d+)\.weight"),
    "converted": (
        r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)",
        r"(?:medusa_heads\.)?lm_heads\.(\d+)()\.weight",
    ),
}
TOKEN_MAPS = ("token_map", "medusa_heads.token_map")

# A tensor that shows a module for multi-token prediction, by the family that names it so.
MTP = {
    "qwen3_next": r"(?:\w+\.)+pre_fc_norm_embedding\.weight",
    "mimo": r"model\.mtp_layers\.\d+\.token_layernorm\.weight",
    "speculators": r"(?:\w+\.)+token_layernorm\.weight",
    "deepseek_v3": r"(?:model\.)?layers\.(\d+)\.enorm\.weight",
}
MODULE = r"(?:mtp|(?:model\.)?(?:mtp_)?layers\.\d+)\..+"
# Decoder layers of a whole language model, and those of one saved without its outer module.
WHOLE = r"(?!mtp\.|medusa|blocks\.\d+\.layers\.)(?:\w+\.)+(?:layers|h|blocks)\.(\d+)\.(?:\w+\.)*\w+"
BARE = r"(?:layers|h|blocks)\.(\d+)\.(?:\w+\.)*\w+"
OUTER = (
    r"(?:\w+\.)*(?:embed_tokens|embed_in|wte|wpe|word_embeddings|norm|ln_f|final_layer_?norm|lm_head|embed_out)"
    r"\.(?:weight|bias)", r"(?:\w+\.)*rotary_emb\.inv_freq",
)  # fmt: skip
EMBEDDINGS = ("wte.weight", "embed_in.weight", "embed_tokens.weight", "word_embeddings.weight")

# Published, but nothing here reads it: a tensor that shows it, and its name.
UNREAD = {
    r"mask_hidden": "P-EAGLE (parallel drafting with EAGLE)",
    r"(?:midlayer|layers\.0)\.self_attn\.kv_a_proj_with_mqa\.weight": "EAGLE-3 with DeepSeek's latent attention",
    r"hidden_correction\.gate_proj\.weight": "DFly (a block drafter with a correction by the token before)",
    r"layer_fusion_weights": "DFlare (a block drafter that mixes the target's layers by weights)",
}
