"""Sums with `einsum`, a reduction by `logaddexp`, and a table of slopes."""

import numpy as np


def cross_entropy(logits, labels, columns, scale, gradient, loss):
    log_sum = np.logaddexp.reduce(logits, axis=0)
    np.subtract(logits, log_sum[None, :], out=gradient)
    loss[:] = -gradient[labels, columns].sum()
    np.exp(gradient, out=gradient)
    gradient[labels, columns] -= 1.0
    np.multiply(gradient, scale, out=gradient)


def _one(y, slope):
    slope.fill(1.0)


def _relu(y, slope):
    np.copyto(slope, y > 0)


def _tanh(y, slope):
    np.multiply(y, y, out=slope)
    np.negative(slope, out=slope)
    slope += 1


def _sigmoid(y, slope):
    np.multiply(y, y, out=slope)
    np.subtract(y, slope, out=slope)


def _selu(y, slope):
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    slope.fill(scale)
    np.add(y, scale * alpha, out=slope, where=y <= 0)


SLOPES = {"identity": _one, "relu": _relu, "tanh": _tanh, "sigmoid": _sigmoid, "special": _selu}


def gradient_of_activation(name, y, dy, out, scratch):
    SLOPES[name](y, scratch)
    np.multiply(scratch, dy, out=out)


def dense_forward(weight, bias, x, activation, y, scratch):
    np.einsum("oi,in->on", weight, x, out=y)
    np.add(y, bias[:, np.newaxis], out=y)
    activation.apply(y, scratch)


def dense_backward(weight, x, y, dy, activation, dz, weight_gradient, bias_gradient, dx, scratch):
    activation.gradient(y, dy, dz, scratch)
    for out, formula, operands in (
        (weight_gradient, "on,in->oi", (dz, x)),
        (bias_gradient, "on->o", (dz,)),
        (dx, "oi,on->in", (weight, dz)),
    ):
        if out is not None:
            np.einsum(formula, *operands, out=out)


def _in_blocks(*arrays):
    for start in range(0, arrays[0].size, 65_536):
        yield [None if array is None else array[start : start + 65_536] for array in arrays]


def sgd_update(weights, gradient, velocity, out, scratch, settings, scalars):
    lr, m = scalars[0], settings.momentum
    for w, g, v, new in _in_blocks(weights, gradient, velocity, out):
        step = scratch[: w.size]
        np.multiply(w, settings.weight_decay, out=step)
        step += g
        np.copyto(new, w)
        if v is not None:
            np.multiply(v, m, out=v)
            step *= 1 - settings.dampening
            np.add(v, step, out=v)
            if settings.nesterov:
                step *= lr
                new -= step
            np.multiply(v, lr * m if settings.nesterov else lr, out=step)
        else:
            step *= lr
        new -= step
