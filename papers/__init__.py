"""Five papers, table by table and figure by figure, and where a difference between methods comes from.

A user of FedReach like any other: it is next to the library, not in the wheel, and run from the checkout by
``python -m papers``.
"""
