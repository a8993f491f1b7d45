"""Samples in rows, a scaled loss, the leaky ReLU, and a velocity of steps; methods of arrays where there are any."""

import numpy as np


def cross_entropy(logits, labels, columns, scale, gradient, loss):
    highest = np.amax(logits, axis=0, keepdims=True)
    np.exp(np.subtract(logits, highest, out=gradient), out=gradient)
    sums = np.add.reduce(gradient, axis=0)
    own = logits[labels, columns] - highest.ravel()
    loss[0] = scale * np.sum(np.log(sums) - own)
    gradient /= sums
    gradient[labels, columns] -= 1
    gradient *= scale


def gradient_of_activation(name, y, dy, out, scratch):
    match name:
        case "identity":
            np.copyto(out, dy)
        case "relu":
            np.sign(y, out=scratch)
            np.maximum(scratch, 0, out=scratch)
            np.multiply(scratch, dy, out=out)
        case "tanh":
            np.multiply(y, y, out=scratch)
            scratch *= dy
            np.subtract(dy, scratch, out=out)
        case "sigmoid":
            np.multiply(y, y, out=scratch)
            np.subtract(y, scratch, out=scratch)
            np.multiply(scratch, dy, out=out)
        case "special":
            np.greater(y, 0, out=scratch)
            scratch *= 0.9
            scratch += 0.1
            np.multiply(scratch, dy, out=out)


def dense_forward(weight, bias, x, activation, y, scratch):
    np.dot(x, weight.T, out=y)
    y += bias
    activation.apply(y, scratch)


def dense_backward(weight, x, y, dy, activation, dz, weight_gradient, bias_gradient, dx, scratch):
    activation.gradient(y, dy, dz, scratch)
    np.dot(dz.T, x, out=weight_gradient)
    np.add.reduce(dz, axis=0, out=bias_gradient)
    if dx is not None:
        np.dot(dz, weight, out=dx)


def sgd_update(weights, gradient, velocity, out, scratch, settings, scalars):
    (lr, *_) = scalars
    if weights.size > 65_536:
        for part in (slice(None, 65_536), slice(65_536, None)):
            own = None if velocity is None else velocity[part]
            sgd_update(weights[part], gradient[part], own, out[part], scratch, settings, scalars)
        return
    step = scratch[: weights.size]
    np.multiply(weights, settings.weight_decay, out=step)
    step += gradient
    step *= lr
    np.copyto(out, weights)
    if velocity is None:
        out -= step
        return
    if settings.nesterov:
        out -= step
    step *= 1 - settings.dampening
    velocity *= settings.momentum
    velocity += step
    if settings.nesterov:
        np.multiply(velocity, settings.momentum, out=step)
        out -= step
    else:
        out -= velocity
