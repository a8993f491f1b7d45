"""The kinds of all layers first; then each layer with the kind of the next one."""

from hybridnn.comm.blocks import block_slice
from hybridnn.nn.parameters import LayerShard


def split_layers(layers, split, ranks, rank):
    kinds = [split == "alternating" and bool(number & 1) for number in range(len(layers))]

    def shard(layer, by_inputs, next_by_inputs):
        block = {name: block_slice(size, ranks, rank) for name, size in (("in", layer.inputs), ("out", layer.outputs))}
        return LayerShard(
            layer=layer,
            rows=slice(0, layer.outputs) if by_inputs else block["out"],
            columns=block["in"] if by_inputs else slice(0, layer.inputs),
            bias_rows=block["out"],
            by_inputs=by_inputs,
            gathers=not (by_inputs or next_by_inputs),
        )

    return list(map(shard, layers, kinds, [*kinds[1:], False]))
