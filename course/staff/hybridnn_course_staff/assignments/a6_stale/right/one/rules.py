"""A table of formulas."""


def weights_read(method, stage, stages, minibatch):
    own = max(minibatch - (stages - 1 - stage), 0)
    first = max(minibatch - (stages - 1), 0)
    before = max(minibatch - 1, 0)
    return {
        "vanilla": (own, own, minibatch),
        "ddg": (own, own, own),
        "fr": (own, minibatch, minibatch),
        "pipedream": (own, own, own),
        "vertical sync": (first, first, first),
        "extra": (before, before, before),
    }[method]
