// Losses as sums over samples, and `scale` times their gradient, in one pass.

// Squared error, averaged over the outputs of a sample. The targets may have any strides: element (row, column) is
// targets[row * row_stride + column * column_stride].
KERNEL mean_squared_error(
    const REAL* outputs, const REAL* targets, REAL* gradient, REAL* loss, Index rows, Index columns, Index row_stride,
    Index column_stride, double scale, double* parts, unsigned* arrived) {
    const REAL factor = static_cast<REAL>(2 * scale / rows);
    const bool in_order = row_stride == columns && column_stride == 1;
    double sum_of_losses = 0, total;
    for_each(rows * columns, in_order && aligned(outputs, targets, gradient), [&](auto chunk, Index i) {
        chunk = load<decltype(chunk)>(outputs, i);
        const Index j = in_order ? i : i / columns * row_stride + i % columns * column_stride;
        const auto target = load<decltype(chunk)>(targets, j);
        for (int k = 0; k < chunk.count; ++k) {
            const REAL error = chunk.at[k] - target.at[k];
            sum_of_losses += static_cast<double>(error) * error;
            chunk.at[k] = error * factor;
        }
        store(gradient, i, chunk);
    });
    if (sum_of_grid(sum_of_losses, parts, arrived, &total)) *loss = static_cast<REAL>(total / rows);
}

constexpr REAL LOWEST = -3.4e+38f;  // below every logit, and finite: infinity minus infinity is NaN

// Cross-entropy of the softmax of logits of shape (classes, samples), by log-sum-exp. A block processes as many samples
// at a time as it has threads along x; the threads along y share the classes. A label out of range makes the loss NaN.
// The exponentials are summed in float64: one after another, those of a million classes would lose three digits of float32.
KERNEL cross_entropy(
    const REAL* logits, const Index* labels, REAL* gradient, REAL* loss, Index classes, Index samples, double scale,
    double* parts, unsigned* arrived) {
    __shared__ REAL peaks[MOST_WARPS * WARP];
    __shared__ double sums[MOST_WARPS * WARP];
    const int lane = threadIdx.x, group = threadIdx.y, groups = blockDim.y, width = blockDim.x;
    const REAL factor = static_cast<REAL>(scale);
    const Index stride = static_cast<Index>(gridDim.x) * width;
    double sum_of_losses = 0, total;
    for (Index first = static_cast<Index>(blockIdx.x) * width; first < samples; first += stride) {
        const Index sample = first + lane;
        const bool is_sample = sample < samples;
        // The sum of exp(z - peak) over the classes of this thread, with the largest logit so far as peak.
        REAL peak = LOWEST;
        double sum = 0;
        for (Index c = group; is_sample && c < classes; c += groups) {
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
        const Index label = is_sample ? labels[sample] : 0;
        if (is_sample && group == 0) {
            const bool is_class = label >= 0 && label < classes;
            sum_of_losses += is_class ? log(sum) - (logits[label * samples + sample] - peak) : nan("");
        }
        const REAL total_of_sample = static_cast<REAL>(sum);
        // Before the gradient may overwrite the label's logit, and the next samples the sums.
        if (groups > 1) __syncthreads();
        for (Index c = group; is_sample && c < classes; c += groups) {
            const Index j = c * samples + sample;
            gradient[j] = (exp(logits[j] - peak) / total_of_sample - (c == label ? 1 : 0)) * factor;
        }
    }
    if (sum_of_grid(sum_of_losses, parts, arrived, &total)) *loss = static_cast<REAL>(total);
}

// Number of samples whose largest logit, of shape (classes, samples), is that of the label. As in NumPy's argmax, the
// first of equal logits counts as the largest, and NaN as larger than any number.
KERNEL count_correct(
    const REAL* logits, const Index* labels, double* correct, Index classes, Index samples, double* parts,
    unsigned* arrived) {
    const Index stride = static_cast<Index>(gridDim.x) * blockDim.x;
    double own = 0, total;
    for (Index sample = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; sample < samples; sample += stride) {
        REAL largest = logits[sample];
        Index found = 0;
        for (Index c = 1; c < classes; ++c) {
            const REAL z = logits[c * samples + sample];
            if (z > largest || (z != z && largest == largest)) {
                largest = z;
                found = c;
            }
        }
        own += found == labels[sample] ? 1 : 0;
    }
    if (sum_of_grid(own, parts, arrived, &total)) *correct = total;
}
