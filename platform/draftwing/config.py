"""The config: models, and how their values are found."""

from __future__ import annotations

from draftwing.config_models import (
    CacheConfig,
    Config,
    DrafterConfig,
    LimitsConfig,
    ModelConfig,
    ParallelConfig,
    PolicyConfig,
    ServerConfig,
)

__all__ = [
    "CacheConfig",
    "Config",
    "DrafterConfig",
    "LimitsConfig",
    "ModelConfig",
    "ParallelConfig",
    "PolicyConfig",
    "ServerConfig",
]
