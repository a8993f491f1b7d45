"""The stage whose forward pass decides, then the version that it finds."""


def weights_read(method, stage, stages, minibatch):
    # the forward pass of this method reads what that stage's forward pass finds
    half = stages // 2
    leader = {"vertical sync": 0, "extra": half if stage >= half else 0}.get(method, stage)
    in_flight = stages - leader - 1
    read = minibatch - in_flight if minibatch > in_flight else 0
    newest = minibatch
    if method == "fr":
        return read, newest, newest
    return read, read, newest if method == "vanilla" else read
