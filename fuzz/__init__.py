"""Hostile inputs, thrown at everything that reads what a stranger may have written.

    python -m fuzz --inputs 100000 --seed 0
    python -m fuzz --minutes 10 --only bundles pictures

What a kind of input is made from, how it is mutated and what is done with it stands in
:mod:`fuzz.kinds`. :mod:`fuzz.watch` says what counts as an escape and :mod:`fuzz.campaign` runs
inputs in processes that may hang or die. The n-th input of a kind depends on the seed and on n
alone, so that ``--only KIND --first N --inputs 1`` repeats it.
"""
