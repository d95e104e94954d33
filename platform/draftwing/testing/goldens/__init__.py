"""Golden cases: folders of numbers that upstream implementations computed, and what checks ours against them.

A case is run by its `kind` and `args` alone, so other folders of the same kinds need no new code. One file per kind;
`kinds.KINDS` lists them.
"""
