// Sums, norms, clipping and copies of arrays.

KERNEL add(const REAL* a, const REAL* b, REAL* out, Index n) {
    for_each(n, aligned(a, b, out), [=](auto chunk, Index i) {
        auto sum = load<decltype(chunk)>(a, i);
        const auto addend = load<decltype(chunk)>(b, i);
        for (int k = 0; k < chunk.count; ++k) sum.at[k] += addend.at[k];
        store(out, i, sum);
    });
}

__device__ inline void multiply(REAL* flat, Index n, REAL factor) {
    for_each(n, aligned(flat), [=](auto chunk, Index i) {
        chunk = load<decltype(chunk)>(flat, i);
        for (int k = 0; k < chunk.count; ++k) chunk.at[k] *= factor;
        store(flat, i, chunk);
    });
}

// In float64, where the squares of float32 elements cannot overflow.
KERNEL squared_norm(const REAL* flat, Index n, double* norm, double* parts, unsigned* arrived) {
    double sum = 0, total;
    for_each(n, aligned(flat), [&](auto chunk, Index i) {
        chunk = load<decltype(chunk)>(flat, i);
        for (int k = 0; k < chunk.count; ++k) sum += static_cast<double>(chunk.at[k]) * chunk.at[k];
    });
    if (sum_of_grid(sum, parts, arrived, &total)) *norm = total;
}

// The same for each of consecutive parts, of which part p ends before element ends[p]. The blocks along y are the parts;
// `parts` has an element for each block.
KERNEL squared_norms(
    const REAL* flat, const Index* ends, Index count, double* norms, double* parts, unsigned* arrived) {
    const Index first = blockIdx.y == 0 ? 0 : ends[blockIdx.y - 1];
    const REAL* own = flat + first;
    double sum = 0;
    for_each(ends[blockIdx.y] - first, aligned(own), [&](auto chunk, Index i) {
        chunk = load<decltype(chunk)>(own, i);
        for (int k = 0; k < chunk.count; ++k) sum += static_cast<double>(chunk.at[k]) * chunk.at[k];
    });
    if (!is_last_block(sum, parts + blockIdx.y * gridDim.x + blockIdx.x, arrived)) return;
    const volatile double* all_parts = parts;
    const int lane = threadIdx.x % WARP;
    for (Index p = threadIdx.x / WARP; p < count; p += blockDim.x / WARP) {
        double norm = 0;
        for (unsigned block = lane; block < gridDim.x; block += WARP) norm += all_parts[p * gridDim.x + block];
        norm = sum_of_lanes(norm, WARP);
        if (lane == 0) norms[p] = norm;
    }
}

// Multiplies by limit / norm if the norm is above the limit; else writes nothing.
KERNEL clip_to_norm(REAL* flat, Index n, const double* squared_norm, double limit) {
    const double norm = sqrt(*squared_norm);
    if (norm > limit) multiply(flat, n, static_cast<REAL>(limit / norm));
}

template <class Word>
__device__ void copy_row(const void* from, void* to, Index bytes) {
    const Word* source = static_cast<const Word*>(from);
    Word* target = static_cast<Word*>(to);
    for (Index i = threadIdx.x; i < bytes / static_cast<Index>(sizeof(Word)); i += blockDim.x) target[i] = source[i];
}

struct alignas(16) SixteenBytes {
    unsigned words[4];
};

// Rows of elements of four bytes or more, by their index. A row out of range is filled with one bits, which are NaN, or
// the label -1, so that the loss becomes NaN.
KERNEL gather_rows(const char* source, const Index* index, char* out, Index rows, Index source_rows, Index bytes) {
    const bool wide = bytes % 16 == 0 && aligned(source, out);
    const Index stride = static_cast<Index>(gridDim.x) * blockDim.y;
    for (Index row = static_cast<Index>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows; row += stride) {
        const Index source_row = index[row];
        char* to = out + row * bytes;
        if (source_row < 0 || source_row >= source_rows) {
            for (Index i = threadIdx.x; i < bytes / 4; i += blockDim.x) reinterpret_cast<unsigned*>(to)[i] = ~0u;
        } else if (wide) {
            copy_row<SixteenBytes>(source + source_row * bytes, to, bytes);
        } else {
            copy_row<unsigned>(source + source_row * bytes, to, bytes);
        }
    }
}

// Captured launches repeat their arguments, but read memory anew. So what differs between the steps of an epoch, the indices
// of the samples and `count` scalars of the update, is in arrays of all steps, from which the step copies its own.
KERNEL begin_step(
    const Index* step, const Index* order, Index batch_size, Index* indices, Index n, const REAL* table,
    REAL* scalars, Index count) {
    const Index threads = static_cast<Index>(gridDim.x) * blockDim.x;
    const Index first = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (Index i = first; i < n; i += threads) indices[i] = order[*step * batch_size + i];
    for (Index i = first; i < count; i += threads) scalars[i] = table[*step * count + i];
}

KERNEL end_step(Index* step, const REAL* loss, double* losses) {
    if (threadIdx.x != 0) return;
    losses[*step] = *loss;
    *step += 1;
}
