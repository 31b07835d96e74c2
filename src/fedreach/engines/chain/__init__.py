"""Models that are chains of layers, with gradients written out."""
