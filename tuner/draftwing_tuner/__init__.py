"""Measures a machine, learns how drafts are accepted, and publishes what the policy should know."""
