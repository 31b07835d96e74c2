"""How the inputs of clients' training batches are changed at random."""

from fedreach.federation.augmentations.base import Augmentation as Augmentation
from fedreach.federation.augmentations.base import FunctionAugmentation as FunctionAugmentation
from fedreach.federation.augmentations.flip_and_crop import FlipAndCrop as FlipAndCrop
from fedreach.federation.augmentations.torchvision import Torchvision as Torchvision
from fedreach.registry import NameTable

AUGMENTATIONS = NameTable(
    __name__,
    flip_and_crop="flip_and_crop:FlipAndCrop",
    torchvision="torchvision:Torchvision",
)
