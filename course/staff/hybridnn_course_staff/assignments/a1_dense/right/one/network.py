"""Products with `matmul`, and one formula after another in the scratch array."""

import numpy as np

S, A = 1.0507009873554805, 1.6732632423543772
BLOCK = 65_536


def cross_entropy(logits, labels, columns, scale, gradient, loss):
    np.subtract(logits, logits.max(axis=0), out=gradient)
    of_labels = gradient[labels, columns]
    np.exp(gradient, out=gradient)
    total = gradient.sum(axis=0)
    gradient *= scale / total
    gradient[labels, columns] -= scale
    loss[0] = float((np.log(total) - of_labels).sum())


def gradient_of_activation(name, y, dy, out, scratch):
    if name == "special":
        np.minimum(y, 0, out=scratch)
        scratch += S * A
        np.multiply(dy, scratch, out=out)
        np.greater(y, 0, out=scratch)
        scratch *= 1 / A - 1
        scratch += 1
        out *= scratch
        return
    if name == "identity":
        scratch[...] = 1
    elif name == "relu":
        np.greater(y, 0, out=scratch)
    elif name == "tanh":
        np.square(y, out=scratch)
        np.subtract(1, scratch, out=scratch)
    else:
        np.subtract(1, y, out=scratch)
        scratch *= y
    np.multiply(dy, scratch, out=out)


def dense_forward(weight, bias, x, activation, y, scratch):
    np.matmul(weight, x, out=y)
    y += bias.reshape(-1, 1)
    activation.apply(y, scratch)


def dense_backward(weight, x, y, dy, activation, dz, weight_gradient, bias_gradient, dx, scratch):
    activation.gradient(y, dy, dz, scratch)
    np.matmul(dz, x.T, out=weight_gradient)
    dz.sum(axis=1, out=bias_gradient)
    if dx is not None:
        np.matmul(weight.T, dz, out=dx)


def sgd_update(weights, gradient, velocity, out, scratch, settings, scalars):
    lr = float(scalars[0])
    for begin in range(0, len(weights), BLOCK):
        end = min(begin + BLOCK, len(weights))
        w, new, g = weights[begin:end], out[begin:end], scratch[: end - begin]
        np.multiply(w, settings.weight_decay, out=g)
        np.add(g, gradient[begin:end], out=g)
        if velocity is None:
            g *= lr
            np.subtract(w, g, out=new)
            continue
        v = velocity[begin:end]
        v *= settings.momentum
        g *= 1 - settings.dampening
        v += g
        if settings.nesterov:
            g *= lr
            np.subtract(w, g, out=new)
            np.multiply(v, lr * settings.momentum, out=g)
            new -= g
        else:
            np.multiply(v, lr, out=g)
            np.subtract(w, g, out=new)
