"""One thread for products of matrices, in every process that decides rounds.

A library divides a product among threads and so adds in another order for each number of them: the last bits of a Gram
matrix, and with them now and then a choice, would depend on the machine. Runs share the cores already, and two that
each divide a product among all cores wait for each other longer than the product takes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""Environment in which numeric libraries, as they are loaded, take one thread each."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let numeric libraries use one thread for a while: those that are loaded, and those that will be meanwhile.

    torch's own number, which engines set as they train, is left alone.

    Example:
        >>> import numpy
        >>> from threadpoolctl import threadpool_info
        >>> with one_thread():
        ...     {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
        {1}
    """
    from threadpoolctl import threadpool_limits

    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
