"""Puts an engine together from a config: resolve and load the target, plan the cache, make drafter and policy."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from draftwing.config import Config
from draftwing.drafters.base import TargetInfo
from draftwing.drafters.registry import make_drafter
from draftwing.engine import attention
from draftwing.engine.admission import Admission
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.loading import LoadedTarget, load_target
from draftwing.engine.memory import available_bytes
from draftwing.engine.runner import ModelRunner, kv_bytes_per_slot, probe_layers
from draftwing.engine.scheduler import Limits
from draftwing.engine.step import Engine
from draftwing.engine.text import Decoder
from draftwing.errors import SetupError
from draftwing.policy.modes import parse_mode
