"""Names for the array types that signatures use; shapes stand as comments where the arrays are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]
AnyArray = NDArray[Any]
