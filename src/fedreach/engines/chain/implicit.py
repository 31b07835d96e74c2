"""A first layer whose weights are not formed until training is over.

Every step of plain SGD moves the weights of a dense first layer by a product of errors and inputs, W <- W - rate D_t^T
X_t. So after t steps a batch X sees X W^T = X W_0^T - rate sum_s (X X_s^T) D_s: all products of inputs with each other
are taken once, and W_0, which all clients share, meets all their examples in one product. The (outputs x inputs)
weights of each client, most numbers of many models, are neither copied nor moved nor read in any step. This pays where
a client sees fewer examples than the layer has outputs.
"""

import torch
from torch import Tensor

from fedreach.engines.chain.layers import Memory
from fedreach.engines.layers import Dense


class ImplicitFirstLayer:
    """The first layer of a clients in one round of local training.

    Args:
        start: (d,) the broadcast model.
        x: (a, s, inputs) all examples in the order in which they are seen.
    """

    def __init__(self, layer: Dense, start: Tensor, x: Tensor, rate: float, memory: Memory) -> None:
        a, s, _ = x.shape
        self.layer, self.x, self.rate, self.memory = layer, x, rate, memory
        weight = start[layer.weight].view(layer.outputs, layer.inputs).t()
        flat, first = x.view(a * s, layer.inputs), memory.take(a * s, layer.outputs)
        if layer.bias is None:
            torch.mm(flat, weight, out=first)
        else:
            torch.addmm(start[layer.bias], flat, weight, out=first)
        self.first = first.view(a, s, layer.outputs)  # what W_0 makes of all examples
        self.products = torch.bmm(x, x.transpose(1, 2), out=memory.take(a, s, s))
        if layer.bias is not None:
            self.products.add_(1)  # the bias is the weight of an input that is always 1
        self.errors = memory.take(*self.first.shape).zero_()

    def forward(self, a: int, begin: int, out: Tensor) -> None:
        """Write what the first `a` clients make of their examples from `begin` on, (a, b, outputs)."""
        rows = slice(begin, begin + out.shape[1])
        if begin:
            past = self.products[:a, rows, :begin], self.errors[:a, :begin]
            torch.baddbmm(self.first[:a, rows], *past, alpha=-self.rate, out=out)
        else:
            out.copy_(self.first[:a, rows])
        if self.layer.relu:
            out.clamp_min_(0)

    def backward(self, a: int, begin: int, y: Tensor, dy: Tensor) -> None:
        """Take in the gradient `dy` of the outputs `y`."""
        errors = self.errors[:a, begin : begin + y.shape[1]]
        if self.layer.relu:
            torch.ops.aten.threshold_backward.grad_input(dy, y, 0.0, grad_input=errors)
        else:
            errors.copy_(dy)

    def moves(self, update: Tensor) -> None:
        """Write how far the weights have moved into their part of the (a, d) update."""
        layer, errors = self.layer, self.errors.mul_(-self.rate)
        weight = update[:, layer.weight].view(len(update), layer.outputs, layer.inputs)
        # One after the other, through the cache: a product that writes to memory far away waits for each line of it.
        product = self.memory.take(layer.outputs, layer.inputs)
        for client, own, x in zip(weight, errors, self.x, strict=True):
            client.copy_(torch.mm(own.t(), x, out=product))
        if layer.bias is not None:
            torch.sum(errors, 1, out=update[:, layer.bias])
