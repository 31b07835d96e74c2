"""Shifts of unseen clients: their inputs look different from the participants', or mean something else.

Everything here changes one client's examples at a time; `unseen.shift_unseen` applies it to a federation. A shift has a
strength, of which 0 changes nothing; one outside the range that the shift tells is a `ConfigError`, as is a shift that
needs scipy where that is missing.
"""

from fedreach.data.shifts.base import Examples as Examples
from fedreach.data.shifts.base import InputScale as InputScale
from fedreach.data.shifts.base import Shift as Shift
from fedreach.data.shifts.unseen import shift_unseen as shift_unseen
from fedreach.registry import NameTable

SHIFTS = NameTable(
    __name__,
    brightness="intensity:Brightness",
    contrast="intensity:Contrast",
    noise="intensity:InputNoise",
    blur="position:Blur",
    rotation="position:Rotation",
    translation="position:Translation",
    occlusion="position:Occlusion",
    permuted_labels="labels:PermutedLabels",
    one_class="labels:OneClass",
    composed="composed:Composed",
)
