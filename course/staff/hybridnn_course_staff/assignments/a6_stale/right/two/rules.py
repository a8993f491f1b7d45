"""The passes of a stage one after the other, with a count of its updates."""


def passes(behind, minibatches):
    """Forward and backward passes of a stage: True and False, with the number of the minibatch."""
    forward = iter(range(minibatches))
    for _ in range(behind):
        yield True, next(forward)
    for number in range(minibatches - behind):
        yield True, next(forward)
        yield False, number


def newest_at(behind, minibatch):
    """Updates before the forward pass and before the backward pass of a minibatch."""
    updates = found = 0
    for is_forward, number in passes(behind, minibatch + behind + 1):
        if number == minibatch:
            if not is_forward:
                return found, updates
            found = updates
        updates += not is_forward


def weights_read(method, stage, stages, minibatch):
    forward, backward = newest_at(stages - 1 - stage, minibatch)
    if method == "vanilla":
        return forward, forward, backward
    if method == "fr":
        return forward, backward, backward
    if method == "vertical sync":
        forward, _ = newest_at(stages - 1, minibatch)
    elif method == "extra":
        forward = backward - (backward > 0)
    return (forward,) * 3
