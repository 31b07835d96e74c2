"""Five papers, table by table and figure by figure, and where a difference between methods comes from.

A user of FedReach like any other: it lies beside the library, is no part of the wheel, and is run from the checkout by
``python -m papers``.
"""
