"""Draftwing on Ray Serve: the gateway, the target replicas and the OpenAI-style HTTP API."""
