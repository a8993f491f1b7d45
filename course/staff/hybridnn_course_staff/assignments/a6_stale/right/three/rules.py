"""One function for the version of a forward pass on any stage."""


def newest(stage, stages, minibatch):
    in_flight = stages - 1 - stage
    return minibatch - in_flight if minibatch > in_flight else 0


def weights_read(method, stage, stages, minibatch):
    version = newest(stage, stages, minibatch)
    match method:
        case "vanilla":
            return version, version, minibatch
        case "fr":
            return version, minibatch, minibatch
        case "vertical sync":
            version = newest(0, stages, minibatch)
        case "extra":
            version = newest(stage // 2 * 2, stages, minibatch)
    return version, version, version
