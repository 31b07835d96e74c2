"""Training of parameters that are bfloat16 or float16.

A client computes with the module's rounded numbers, as torch does. Gradients come in the parameters' own type; solvers,
clipping, momentum and the step work on them in float32, and after each step the parameters are rounded once. Plain
steps are those of `torch.optim.SGD`, which on a CPU also rounds the learning rate to the parameters' type.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedreach.models.flat import Layout


class NarrowParameters:
    """The narrow trained parameters of a module that is bound to a vector, see `fedreach.models.flat.bind`.

    Args:
        module: The module.
        layout: The module's.
        vector: (d,) float32 numbers that the module is bound to; it takes their rounded values.
        gradient: (p,) gradient of all trained parameters.

    Example:
        >>> import torch
        >>> from fedreach.models.flat import bind
        >>> layer = nn.Linear(1, 1, bias=False).bfloat16()
        >>> layout, vector, gradient = Layout.of(layer), torch.tensor([1.001]), torch.zeros(1)
        >>> bind(layer, vector, gradient, layout=layout)
        >>> parameters = NarrowParameters(layer, layout, vector, gradient)
        >>> layer(torch.ones(1, 1).bfloat16()).sum().backward()
        >>> parameters.take_gradients()
        >>> vector, gradient
        (tensor([1.]), tensor([1.]))
    """

    def __init__(self, module: nn.Module, layout: Layout, vector: Tensor, gradient: Tensor) -> None:
        parameters = dict(module.named_parameters())
        weights = layout.parameter_views(vector[: layout.num_trainable])
        gradients = layout.parameter_views(gradient)
        self._parameters = [
            (parameters[name], weights[name], gradients[name]) for name in weights if name in layout.narrow
        ]
        self.take_weights()

    def take_gradients(self) -> None:
        """Move the gradients that backward() made into the (p,) vector."""
        for parameter, _, gradient in self._parameters:
            if parameter.grad is not None:
                gradient.copy_(parameter.grad)
                parameter.grad = None

    def give_gradients(self) -> None:
        """Give the parameters their gradients, rounded, for an optimizer of torch."""
        for parameter, _, gradient in self._parameters:
            parameter.grad = gradient.to(parameter.dtype)

    def take_weights(self) -> None:
        """Let the vector hold what the parameters hold, and forget their gradients."""
        for parameter, weights, _ in self._parameters:
            weights.copy_(parameter.data)
            parameter.grad = None

    def round_weights(self) -> None:
        """Let the parameters hold the numbers of the vector, rounded to their type, and the vector the same."""
        for parameter, weights, _ in self._parameters:
            parameter.data.copy_(weights)
            weights.copy_(parameter.data)
