// Bias, activations and their gradients, for arrays of shape (rows, columns): a row per feature, a column per sample.

// An Activation has value(z), and slope(y), the derivative as a function of its output y. The classes are generated from the
// table in nn/activations.py, behind all files, each followed by KERNELS_OF.

// z = activation(z), in place.
template <class Activation>
__device__ void activate(REAL* z, Index n) {
    for_each(n, aligned(z), [=](auto chunk, Index i) {
        chunk = load<decltype(chunk)>(z, i);
        for (int k = 0; k < chunk.count; ++k) chunk.at[k] = Activation::value(chunk.at[k]);
        store(z, i, chunk);
    });
}

// z = activation(z + bias), in place; threads along x process a row, along y several rows.
template <class Activation>
__device__ void bias_activate(REAL* z, const REAL* bias, Index rows, Index columns) {
    const bool in_packs = rows_aligned(columns, z);
    const Index first = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
    const Index threads = static_cast<Index>(gridDim.x) * blockDim.x;
    const Index stride = static_cast<Index>(gridDim.y) * blockDim.y;
    for (Index row = static_cast<Index>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows; row += stride) {
        REAL* z_row = z + row * columns;
        const REAL addend = bias[row];
        for_each_of_row(columns, in_packs, first, threads, [=](auto chunk, Index i) {
            chunk = load<decltype(chunk)>(z_row, i);
            for (int k = 0; k < chunk.count; ++k) chunk.at[k] = Activation::value(chunk.at[k] + addend);
            store(z_row, i, chunk);
        });
    }
}

// out = dy * slope(y).
template <class Activation>
__device__ void gradient(const REAL* y, const REAL* dy, REAL* out, Index n) {
    for_each(n, aligned(y, dy, out), [=](auto chunk, Index i) {
        chunk = load<decltype(chunk)>(dy, i);
        const auto outputs = load<decltype(chunk)>(y, i);
        for (int k = 0; k < chunk.count; ++k) chunk.at[k] *= Activation::slope(outputs.at[k]);
        store(out, i, chunk);
    });
}

// Calls body(i, chunk) for all elements of all rows, and stores the sum of its results for every row. The threads along x of
// one block process a full row.
template <class Body>
__device__ void sum_rows(Index rows, Index columns, bool in_packs, REAL* sums, Body body) {
    const Index stride = static_cast<Index>(gridDim.x) * blockDim.y;
    // All threads of a block iterate equally often, because sum_along_x synchronizes them.
    for (Index first = static_cast<Index>(blockIdx.x) * blockDim.y; first < rows; first += stride) {
        const Index row = first + threadIdx.y;
        REAL sum = 0;
        if (row < rows) {
            for_each_of_row(columns, in_packs, threadIdx.x, blockDim.x, [&](auto chunk, Index i) {
                sum += body(row * columns + i, chunk);
            });
        }
        sum = sum_along_x(sum);
        if (row < rows && threadIdx.x == 0) sums[row] = sum;
    }
}

KERNEL row_sums(const REAL* dz, REAL* sums, Index rows, Index columns) {
    const auto body = [=](Index i, auto chunk) {
        chunk = load<decltype(chunk)>(dz, i);
        REAL sum = 0;
        for (int k = 0; k < chunk.count; ++k) sum += chunk.at[k];
        return sum;
    };
    sum_rows(rows, columns, rows_aligned(columns, dz), sums, body);
}

// out = dy * slope(y), and its row sums.
template <class Activation>
__device__ void gradient_and_row_sums(
    const REAL* y, const REAL* dy, REAL* out, REAL* sums, Index rows, Index columns) {
    sum_rows(rows, columns, rows_aligned(columns, y, dy, out), sums, [=](Index i, auto chunk) {
        chunk = load<decltype(chunk)>(dy, i);
        const auto outputs = load<decltype(chunk)>(y, i);
        REAL sum = 0;
        for (int k = 0; k < chunk.count; ++k) sum += chunk.at[k] *= Activation::slope(outputs.at[k]);
        store(out, i, chunk);
        return sum;
    });
}

#define KERNELS_OF(name, Activation)                                                                            \
    KERNEL activate_##name(REAL* z, Index n) { activate<Activation>(z, n); }                                    \
    KERNEL bias_##name(REAL* z, const REAL* bias, Index rows, Index columns) {                                  \
        bias_activate<Activation>(z, bias, rows, columns);                                                      \
    }                                                                                                           \
    KERNEL gradient_##name(const REAL* y, const REAL* dy, REAL* out, Index n) {                                 \
        gradient<Activation>(y, dy, out, n);                                                                    \
    }                                                                                                           \
    KERNEL gradient_sums_##name(                                                                                \
        const REAL* y, const REAL* dy, REAL* out, REAL* sums, Index rows, Index columns) {                      \
        gradient_and_row_sums<Activation>(y, dy, out, sums, rows, columns);                                     \
    }
