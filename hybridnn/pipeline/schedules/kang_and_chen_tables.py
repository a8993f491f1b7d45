"""Where the lines of Kang 2019, Tables 2 to 5, and equations 4 to 6 of Chen et al. 2018 (SpecTrain) are.

Backquoted names are of the modules of this package. The methods of the papers:

=====================================  ==============================  ===================================
Kang 2019                              order, `computation_orders`     weights, `weight_policies`
=====================================  ==============================  ===================================
Table 2, naive sequential              `gpipe` with one microbatch     `EXACT`
Table 3, delayed gradients (DDG)       `delayed_gradients`             `STASHED`
Table 4, features replay (FR)          `features_replay`               `CURRENT`
Table 5, PipeDream                     `pipedream`                     `STASHED`
**Chen et al. 2018**
vanilla model parallelism              `pipedream`                     `CURRENT`
SpecTrain, equations 5 and 6           `pipedream`                     `PREDICTED`
SpecTrain, equation 4                  ``predict`` in `hybridnn.nn.optimizers`
=====================================  ==============================  ===================================

The lines of Kang's tables, as `instructions`:

============================================  ==================================================================
"get input from dataloader"                   `LoadInput`
"get the target from the dataloader"          `LoadTarget`
"receive input from former device"            `ReceiveActivations`
"do forward pass to get activation"           `Forward`
"send h to next device"                       `SendActivations`
"receive gradient from next device"           `ReceiveGradients`
"recompute activation with w"                 `Recompute`
"calculate loss"                              part of the last stage's `Backward`
"do the backward pass to update the weight"   `Backward` with the loss and the input's gradient; then `Update`
"send gradient to former block"               `SendGradients`
"store" and "pop" of a deque                  none: buffers of `memory_plan`; of gradients, those of a receiver
============================================  ==================================================================
"""
