"""Everything that proposes tokens ahead of the target: one file per method, behind the protocol of `base`."""
