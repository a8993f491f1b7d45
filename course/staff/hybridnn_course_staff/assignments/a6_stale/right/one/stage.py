"""One dictionary for each kind of stored array; weights are bound to a new array in every update."""

import numpy as np


class Stage:
    def __init__(self, weights, activation, method, rate):
        self.weights, self.activation, self.method, self.rate = weights, activation, method, rate
        self.inputs, self.outputs, self.old_weights = {}, {}, {}

    def f(self, z):
        return np.tanh(z) if self.activation == "tanh" else z

    def forward(self, minibatch, x):
        y = self.f(self.weights @ x)
        self.inputs[minibatch] = x.copy()
        if self.method != "fr":
            self.outputs[minibatch] = y
        if self.method == "ddg":
            self.old_weights[minibatch] = self.weights
        return y

    def backward(self, minibatch, dy):
        x = self.inputs.pop(minibatch)
        w = self.old_weights.pop(minibatch, self.weights)
        y = self.outputs.pop(minibatch) if minibatch in self.outputs else self.f(w @ x)
        dz = dy * (1 - y**2) if self.activation == "tanh" else dy
        dx = w.T @ dz
        self.weights = self.weights - self.rate * (dz @ x.T)
        return dx
