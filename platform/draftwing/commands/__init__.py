"""The sub-commands that need the engine alone, one per file. No torch at import time: `--help` loads them all."""
