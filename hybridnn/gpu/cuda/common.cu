// Common definitions, compiled in front of the other files. REAL, float or double, is a compiler option.
//
// The order of every sum depends on the sizes only, so equal inputs give equal bits.
// Arrays are C-contiguous. Outputs may be inputs: a thread reads its elements before it writes them.

#define KERNEL extern "C" __global__ void __launch_bounds__(256)

using Index = long long;

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int MOST_WARPS = 8;  // of a block: 256 threads

// N elements that are loaded and stored at once.
template <int N>
struct alignas(N * sizeof(REAL)) Elements {
    static constexpr int count = N;
    REAL at[N];
};

using Single = Elements<1>;
using Pack = Elements<16 / sizeof(REAL)>;  // the widest load

template <class Chunk>
__device__ Chunk load(const REAL* from, Index i) {
    return *reinterpret_cast<const Chunk*>(from + i);
}

template <class Chunk>
__device__ void store(REAL* to, Index i, const Chunk& chunk) {
    *reinterpret_cast<Chunk*>(to + i) = chunk;
}

// Whether packs can be loaded from all these addresses; null pointers are allowed.
template <class... Pointers>
__device__ bool aligned(Pointers... pointers) {
    return ((reinterpret_cast<unsigned long long>(pointers) % sizeof(Pack) == 0) && ...);
}

// Calls body(chunk, i) once for each of n elements i: in packs if `in_packs`, and one by one for the rest.
template <class Body>
__device__ void for_each(Index n, bool in_packs, Body body) {
    const Index threads = static_cast<Index>(gridDim.x) * blockDim.x;
    const Index first = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
    const Index packed = in_packs ? n / Pack::count * Pack::count : 0;
    for (Index i = first * Pack::count; i < packed; i += threads * Pack::count) body(Pack(), i);
    for (Index i = packed + first; i < n; i += threads) body(Single(), i);
}

// The same for a row of n elements and the threads along x: this is thread `first` of `threads`.
template <class Body>
__device__ void for_each_of_row(Index n, bool in_packs, Index first, Index threads, Body body) {
    if (in_packs) {
        for (Index i = first * Pack::count; i < n; i += threads * Pack::count) body(Pack(), i);
    } else {
        for (Index i = first; i < n; i += threads) body(Single(), i);
    }
}

// Whether packs can be loaded from all rows: the arrays are aligned, and the rows are multiples of a pack.
template <class... Pointers>
__device__ bool rows_aligned(Index columns, Pointers... pointers) {
    return columns % Pack::count == 0 && aligned(pointers...);
}

// Sum over groups of `lanes` adjacent lanes, a power of two up to 32, in every lane. All lanes of a warp must call.
template <class T>
__device__ T sum_of_lanes(T value, int lanes) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    return value;
}

// Sum over the threads of a block that share threadIdx.y, in each of them. All threads of a block must call.
// blockDim.x is a power of two, and the block consists of full warps.
template <class T>
__device__ T sum_along_x(T value) {
    const int across = blockDim.x;
    value = sum_of_lanes(value, across < WARP ? across : WARP);
    if (across <= WARP) return value;
    __shared__ T parts[MOST_WARPS];
    const int warps = across / WARP;
    if (threadIdx.x % WARP == 0) parts[threadIdx.y * warps + threadIdx.x / WARP] = value;
    __syncthreads();
    T sum = 0;
    for (int warp = 0; warp < warps; ++warp) sum += parts[threadIdx.y * warps + warp];
    __syncthreads();  // the next call writes `parts` again
    return sum;
}

// Sum over all threads of a block of any shape.
__device__ inline double sum_of_block(double value) {
    value = sum_of_lanes(value, WARP);
    __shared__ double parts[MOST_WARPS];
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int warps = blockDim.x * blockDim.y / WARP;
    if (thread % WARP == 0) parts[thread / WARP] = value;
    __syncthreads();
    double sum = 0;
    for (int warp = 0; warp < warps; ++warp) sum += parts[warp];
    __syncthreads();
    return sum;
}

// Sum of the values of a block, which is written to `part`. Returns true in all threads of the last block of the grid to
// finish, which may read the sums of all blocks. *arrived is 0 before; the last block resets it.
__device__ inline bool is_last_block(double value, double* part, unsigned* arrived) {
    __shared__ bool is_last;
    const double sum = sum_of_block(value);
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        *part = sum;
        __threadfence();  // the partial sum is visible before its block counts as arrived
        is_last = atomicAdd(arrived, 1u) == gridDim.x * gridDim.y - 1;
        if (is_last) *arrived = 0;
    }
    __syncthreads();
    if (is_last) __threadfence();
    return is_last;
}

// Sum over all threads of a grid along x. Returns true in one thread only, which gets the sum in *total: every block
// writes a partial sum to `parts`, and the last block to finish adds them. *arrived is 0 before and after.
__device__ inline bool sum_of_grid(double value, double* parts, unsigned* arrived, double* total) {
    if (!is_last_block(value, parts + blockIdx.x, arrived)) return false;
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int threads = blockDim.x * blockDim.y;
    const volatile double* all_parts = parts;
    double sum = 0;
    for (unsigned block = thread; block < gridDim.x; block += threads) sum += all_parts[block];
    sum = sum_of_block(sum);
    if (thread != 0) return false;
    *total = sum;
    return true;
}
