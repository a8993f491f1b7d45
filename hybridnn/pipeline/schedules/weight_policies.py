"""Weight policies: the weights that the forward and the backward pass of a minibatch read, for each pipeline method.

`PREDICTED` is weight prediction (SpecTrain, Chen et al. 2018): equation 4 extrapolates the weights by s updates
(`predict` of the optimizers in `hybridnn.nn.optimizers`), and equations 5 and 6 give s for the forward and for the
backward pass (`_predicted_forward` and `_predicted_backward` here). Both count the updates that the stage makes with
other minibatches until the round trip of the minibatch ends. The equations assume a full pipeline. While it fills,
fewer updates follow; at its end, `Schedule.weights_read` in `hybridnn.pipeline.schedules.schedule` limits the number.

A stage's weight version is the number of its updates since the epoch began. K is the number of stages, k = 0 … K-1 the
stage and t = 0, 1, … the minibatch.
"""

from __future__ import annotations

from hybridnn.pipeline.schedules.schedule import EXACT as EXACT
from hybridnn.pipeline.schedules.schedule import INITIAL as INITIAL
from hybridnn.pipeline.schedules.schedule import WeightPolicy as WeightPolicy
from hybridnn.pipeline.schedules.schedule import WeightRead as WeightRead
from hybridnn.pipeline.schedules.schedule import newest, one_version


def _delayed(stage: int, stages: int, minibatch: int) -> WeightRead:
    """The newest version while stages - 1 - stage earlier minibatches are in flight."""
    return WeightRead(max(0, minibatch - (stages - 1 - stage)))


def _of_first_stage(stage: int, stages: int, minibatch: int) -> WeightRead:
    return WeightRead(max(0, minibatch - (stages - 1)))


def _previous(stage: int, stages: int, minibatch: int) -> WeightRead:
    return WeightRead(max(0, minibatch - 1))


def _predicted_over_delay(stage: int, stages: int, minibatch: int) -> WeightRead:
    """The newest version, predicted over the updates that come before the minibatch's own one."""
    version = _delayed(stage, stages, minibatch).version
    return WeightRead(version, minibatch - version)


def _estimated_of_forward(stage: int, stages: int, minibatch: int) -> WeightRead:
    """The newest version, extrapolated back over the updates since the forward pass."""
    return WeightRead(minibatch, _delayed(stage, stages, minibatch).version - minibatch)


def _predicted_forward(stage: int, stages: int, minibatch: int) -> WeightRead:
    """Chen et al. 2018, equation 5: s = floor(k/2) + K - k - 1 in a full pipeline.

    Before the backward pass the stage applies the minibatches in flight, K - k - 1 of them once the pipeline is full,
    and after it floor(k/2) later ones.
    """
    version = _delayed(stage, stages, minibatch).version
    return WeightRead(version, minibatch - version + stage // 2)


def _predicted_backward(stage: int, stages: int, minibatch: int) -> WeightRead:
    """Chen et al. 2018, equation 6: s = floor(k/2).

    With passes of equal length, stage k applies minibatch i in time unit 2i + 2K - k, and the round trip of minibatch t
    ends in unit 2t + 2K: floor(k/2) later minibatches are applied until then.
    """
    return WeightRead(minibatch, stage // 2)


STASHED = WeightPolicy("stashed", _delayed, _delayed, lambda stage, stages: stages - stage)
"""The backward pass reads the weights of its forward pass (Kang 2019, section 2.2.2: K-k+1 states, k from 1)."""

VERTICAL_SYNC = WeightPolicy("vertical sync", _of_first_stage, _of_first_stage, lambda stage, stages: stages)
"""Every stage reads the version that the first stage's forward pass read (Chen et al. 2018, section 3.2)."""

DOUBLE_BUFFERED = WeightPolicy("double-buffered", _previous, _previous, lambda stage, stages: 2)
"""Both passes read the version before the newest, on all stages (Narayanan et al. 2021, section 3.1)."""

CURRENT = WeightPolicy("current", _delayed, newest, one_version)
"""Both passes read the newest weights, of different versions."""

PREDICTED = WeightPolicy("predicted", _predicted_forward, _predicted_backward, one_version)
"""Both passes read the weights predicted for the end of the minibatch's round trip (Chen et al. 2018, equation 4)."""

LINEAR_PREDICTION = WeightPolicy("linear prediction", _predicted_over_delay, newest, one_version)
"""The forward pass predicts the weights that the backward pass reads, the newest (Kosson et al. 2021)."""

DISCREPANCY_CORRECTED = WeightPolicy("discrepancy correction", _delayed, _estimated_of_forward, one_version)
"""The backward pass estimates the weights of the forward pass from the newest ones (Yang et al. 2021, T2)."""
