// Losses as sums over samples, with `scale` times their gradient, in one pass.

// Squared error, averaged over the outputs of a sample. The targets may lie in any order: number (row, column) is
// targets[row * row_step + column * column_step].
KERNEL mean_squared_error(
    const REAL* outputs, const REAL* targets, REAL* gradient, REAL* loss, Index rows, Index columns, Index row_step,
    Index column_step, double scale, double* parts, unsigned* arrived) {
    const REAL factor = static_cast<REAL>(2 * scale / rows);
    const bool in_order = row_step == columns && column_step == 1;
    double mine = 0, total;
    for_each(rows * columns, in_order && aligned(outputs, targets, gradient), [&](auto chunk, Index i) {
        chunk = load<decltype(chunk)>(outputs, i);
        const Index place = in_order ? i : i / columns * row_step + i % columns * column_step;
        const auto wanted = load<decltype(chunk)>(targets, place);
        for (int k = 0; k < chunk.count; ++k) {
            const REAL error = chunk.at[k] - wanted.at[k];
            mine += static_cast<double>(error) * error;
            chunk.at[k] = error * factor;
        }
        store(gradient, i, chunk);
    });
    if (sum_of_grid(mine, parts, arrived, &total)) *loss = static_cast<REAL>(total / rows);
}

constexpr REAL LOWEST = -3.4e+38f;  // below every logit, and finite: infinity minus infinity would be not a number

// Cross-entropy of the softmax of logits of shape (classes, samples), by log-sum-exp. A block takes as many samples at
// a time as it has threads along x; the threads along y share out the classes. A label that is no class makes the loss
// not a number.
KERNEL cross_entropy(
    const REAL* logits, const Index* labels, REAL* gradient, REAL* loss, Index classes, Index samples, double scale,
    double* parts, unsigned* arrived) {
    __shared__ REAL peaks[MOST_WARPS * WARP], sums[MOST_WARPS * WARP];
    const int lane = threadIdx.x, group = threadIdx.y, groups = blockDim.y, width = blockDim.x;
    const REAL factor = static_cast<REAL>(scale);
    const Index stride = static_cast<Index>(gridDim.x) * width;
    double mine = 0, total;
    for (Index first = static_cast<Index>(blockIdx.x) * width; first < samples; first += stride) {
        const Index sample = first + lane;
        const bool is_there = sample < samples;
        // The sum of exp(z - peak) over the classes of this thread, with the highest logit so far as peak.
        REAL peak = LOWEST, sum = 0;
        for (Index c = group; is_there && c < classes; c += groups) {
            const REAL z = logits[c * samples + sample];
            if (z > peak) {
                sum = sum * exp(peak - z) + 1;
                peak = z;
            } else {
                sum += exp(z - peak);
            }
        }
        if (groups > 1) {
            peaks[group * width + lane] = peak;
            sums[group * width + lane] = sum;
            __syncthreads();
            for (int i = lane; i < groups * width; i += width) peak = peaks[i] > peak ? peaks[i] : peak;
            sum = 0;
            for (int i = lane; i < groups * width; i += width) sum += sums[i] * exp(peaks[i] - peak);
        }
        const Index label = is_there ? labels[sample] : 0;
        if (is_there && group == 0) {
            const bool is_class = label >= 0 && label < classes;
            mine += is_class ? log(sum) - (logits[label * samples + sample] - peak) : nan("");
        }
        // The label's logit is read before the gradient may overwrite it, and the sums before the next ones.
        if (groups > 1) __syncthreads();
        for (Index c = group; is_there && c < classes; c += groups) {
            const Index place = c * samples + sample;
            gradient[place] = (exp(logits[place] - peak) / sum - (c == label ? 1 : 0)) * factor;
        }
    }
    if (sum_of_grid(mine, parts, arrived, &total)) *loss = static_cast<REAL>(total);
}
