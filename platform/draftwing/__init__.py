"""Draftwing: serve large language models with speculative decoding, output identical to plain decoding."""

__version__ = "0.1.0"
