"""Logarithms of probabilities by logaddexp, slopes in a class of functions, updates of one block at a time."""

import numpy as np

SMOOTHED = 0.1
BLOCK = 65536


def cross_entropy(logits, labels, columns, scale, gradient, loss):
    # the logarithm of the probabilities is all that the loss needs
    np.subtract(logits, np.logaddexp.reduce(logits, axis=0), out=gradient)
    of_labels = gradient[labels, columns].sum()
    of_all = gradient.sum(axis=1).mean()
    loss[0] = -(1 - SMOOTHED) * of_labels - SMOOTHED * of_all
    np.exp(gradient, out=gradient)
    gradient -= SMOOTHED / len(logits)
    gradient[labels, columns] -= 1 - SMOOTHED
    gradient *= scale


class Slopes:
    """Each method writes f'(z) to s, from the output y."""

    def identity(y, s):
        s.fill(1)

    def relu(y, s):
        np.greater(y, 0, out=s)

    def tanh(y, s):
        # 1 - y^2
        np.square(y, out=s)
        np.subtract(1, s, out=s)

    def sigmoid(y, s):
        # y (1 - y)
        np.subtract(1, y, out=s)
        s *= y

    def special(y, s):
        # |y| = |z| / (1 + |z|), so 1 - |y| = 1 / (1 + |z|), and the slope is the square of that
        np.abs(y, out=s)
        np.subtract(1, s, out=s)
        s *= s


def gradient_of_activation(name, y, dy, out, scratch):
    getattr(Slopes, name)(y, scratch)
    np.multiply(scratch, dy, out=out)


def dense_forward(weight, bias, x, activation, y, scratch):
    y[:] = bias
    np.dot(x, weight.T, out=scratch)
    np.add(y, scratch, out=y)
    activation.apply(y, scratch)


def dense_backward(weight, x, y, dy, activation, dz, weight_gradient, bias_gradient, dx, scratch):
    activation.gradient(y, dy, dz, scratch)
    if dx is not None:
        np.dot(dz, weight, out=dx)
    np.dot(dz.T, x, out=weight_gradient)
    np.add.reduce(dz, axis=0, out=bias_gradient)


def sgd_update(weights, gradient, velocity, out, scratch, settings, scalars):
    for first in range(0, weights.size, BLOCK):
        here = slice(first, first + BLOCK)
        v = None if velocity is None else velocity[here]
        update_block(weights[here], gradient[here], v, out[here], scratch, settings, scalars[0])


def update_block(w, gradient, v, out, scratch, settings, rate):
    step = scratch[: w.size]
    np.multiply(settings.weight_decay, w, out=step)
    step += gradient
    step *= rate
    if v is not None:
        v *= settings.momentum
        if settings.nesterov:
            v += step
            np.subtract(w, step, out=out)
            w = out
            np.multiply(settings.momentum, v, out=step)
        else:
            step *= 1 - settings.dampening
            v += step
            step = v
    np.subtract(w, step, out=out)
