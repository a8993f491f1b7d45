"""Where the lines of Kang 2019, Tables 2 to 5, and equations 1 to 6 of Chen et al. 2018 (SpecTrain) are.

Backquoted names without a package are of `hybridnn.pipeline.schedules`. The methods of the papers:

=====================================  ==============================  ===================================
Kang 2019                              order, `computation_orders`     weights, `weight_policies`
=====================================  ==============================  ===================================
Table 2, naive sequential              `one_minibatch_at_a_time`       `EXACT`
Table 3, delayed gradients (DDG)       `delayed_gradients`             `STASHED`
Table 4, features replay (FR)          `features_replay`               `CURRENT`
Table 5, PipeDream                     `pipedream`                     `STASHED`
**Chen et al. 2018**
vanilla model parallelism              `pipedream`                     `CURRENT`
section 3.2, vertical sync             `pipedream-vsync`               `VERTICAL_SYNC`
SpecTrain                              `pipedream`                     `PREDICTED`
=====================================  ==============================  ===================================

The equations of Chen et al. 2018:

=======================================  =========================================================================
equations 1 and 2, momentum and update   ``SGD.update`` in `hybridnn.nn.optimizers`, with ``dampening`` = ``momentum``
equations 3 and 4, predicted weights     ``SGD.predict`` there, W - s η v; ``Adam.predict`` for Adam
equation 5, s of a forward pass          `_predicted_forward` in `weight_policies`
equation 6, s of a backward pass         `_predicted_backward` in `weight_policies`
=======================================  =========================================================================

The lines of Kang's tables, as `instructions`, which `hybridnn.pipeline.execution.executor` executes:

============================================  ==================================================================
"For step t"                                  the order of the instructions; `hybridnn.pipeline.schedules.program`
"get input from dataloader"                   `Load` of the first stage
"get the target from the dataloader"          `Load` of the last stage
"receive input from former device"            `ReceiveActivations`
"do forward pass to get activation"           `Forward`
"send h to next device"                       `SendActivations`
"receive gradient from next device"           `ReceiveGradients`
"get stored gradient"                         none: the receiver has it; `hybridnn.pipeline.execution.point_to_point`
"recompute activation with w"                 `Recompute`
"calculate loss"                              part of the last stage's `Backward`: `cross_entropy` and
                                              `mean_squared_error` in `hybridnn.nn.kernels`
"do the backward pass to update the weight"   `Backward` with the loss and the input's gradient; then `Update`
"send gradient to former block"               `SendGradients`
"Create deque", "store" and "pop"             none: buffers of `plan_memory`; of gradients, those of a receiver
============================================  ==================================================================

Loads and messages are placed among the computations of Table 5 by `schedule.with_loads` and
`compiled_schedule.place_messages`; the orders of Tables 3 and 4 have them where the tables do.
"""
