"""Where the lines of Algorithms 1 (batch), 2 (model) and 3 (integrated parallelism) of Laugier et al. 2018 are.

The names in parentheses are modules of this package. Lines are counted from ``procedure``:

==================================  =====  =====  =======  ===========================================================
line                                1      2      3        code
==================================  =====  =====  =======  ===========================================================
layers_init, loss_init              2      2      2        `ModelChunk` (`model_chunk`), `hybridnn.nn.parameters`
for epoch                           3      3      3        `Trainer.fit`
CreateMiniBatches                   4, 5   4, 5   4, 5     `epoch_order`, `minibatches` (`hybridnn.training.data_split`)
for miniBatch                       6      6      6        `Engine.train`
Scatter, scatter_broadcast          7             7        `distribution`
previous_y = miniBatch              8      7      8        `Loader` (`hybridnn.training.data_split`)
for layer: ForwardPass              9, 10  8, 9   9, 10    `ModelChunk.forward`, `ColumnDense.forward` (`dense`)
AllGather of the outputs                   10     11       `ColumnDense.forward`
gradient of the loss                11     11     12       `loss_gradient` (`hybridnn.nn.losses`)
for layer in reverse                12     12     13       `ModelChunk.backward`
slice of the output gradient               13     14       a view: ``own_dy`` of `LayerArrays` (`dense`, `workspace`)
BackwardPass                        13     14     15       `ColumnDense.backward_input`, `backward_weight`
AllReduce of the weight gradient    14            16       `GradientReducer` (`gradient_reduction`), or the replicas
AllReduce of the input gradient            15     17       `ColumnDense.backward_input`
ApplyGradient                       15     16     18       `update` of the replicas (`replica`) and of the optimizers
==================================  =====  =====  =======  ===========================================================

Algorithms 2 and 3 apply the gradient of each layer within the backward loop; here one update follows the loop, as in
Algorithm 1. Algorithm 3 all-reduces the weight gradients layer by layer; here, and as section 5 of the paper describes
for Algorithm 1, they are all-reduced after the loop, or in buckets.
"""
