"""What tests of Draftwing and of its plug-ins are made of: oracles, mocks and suites that state the rules."""

from draftwing.testing.same_tokens import assert_same_tokens, compare_tokens

__all__ = ["assert_same_tokens", "compare_tokens"]
