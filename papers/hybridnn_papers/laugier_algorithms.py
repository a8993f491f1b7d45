"""Where the lines of Algorithms 1 (batch), 2 (model) and 3 (integrated parallelism) of Laugier et al. 2018 are.

The names in parentheses are modules, of `hybridnn.parallel` unless they begin with ``hybridnn``. Lines are counted from
``procedure``:

================================  =====  =====  =====  =============================================================
line                              1      2      3      code
================================  =====  =====  =====  =============================================================
layers_init                       2      2      2      `ModelChunk.load` (`model_chunk`)
loss_init                         2      2      2      `resolve_loss` (`hybridnn.nn.mlp`)
for epoch                         3      3      3      `Trainer.fit` (`hybridnn.training.trainer`)
CreateMiniBatches                 4, 5   4, 5   4, 5   `epoch_order`, `minibatches` (`hybridnn.training.data_split`)
for miniBatch                     6      6      6      `Engine.train` (`hybridnn.training.engine`)
Scatter, scatter_broadcast        7             7      `ScatterDistributor` (`hybridnn.training.data_split`)
previous_y = miniBatch            8      7      8      `Engine.make_minibatches` (`hybridnn.training.engine`)
for layer                         9      8      9      `ModelChunk.forward` (`model_chunk`)
ForwardPass                       10     9      10     `ColumnDense.forward` (`dense`)
AllGather of the outputs                 10     11     `ColumnDense.forward` (`dense`)
gradient of the loss              11     11     12     `Kernels.cross_entropy` (`hybridnn.nn.kernels`)
for layer in reverse              12     12     13     `ModelChunk.backward` (`model_chunk`)
slice of the output gradient             13     14     a view: `LayerArrays.own_dy` (`dense`)
BackwardPass, input gradient      13     14     15     `ColumnDense.backward_input` (`dense`)
BackwardPass, weight gradient     13     14     15     `ColumnDense.backward_weight` (`dense`)
AllReduce of the weight gradient  14            16     `GradientReducer` (`gradient_reduction`)
AllReduce of the input gradient          15     17     `ColumnDense.backward_input` (`dense`)
ApplyGradient                     15     16     18     `PrivateReplica.update` (`model_chunk`) and of the optimizer
================================  =====  =====  =====  =============================================================

Algorithms 2 and 3 apply the gradient of each layer within the backward loop; here one update follows the loop, as in
Algorithm 1. Algorithm 3 all-reduces the weight gradients layer by layer; here, and as section 5 of the paper describes
for Algorithm 1, they are all-reduced after the loop, or in buckets.

Batch ranks of one node may share a replica: `SharedReplica.update` (`shared_replica`) is then both the AllReduce of the
weight gradient and ApplyGradient.
"""
