// Five functions of cuBLAS as its header declares them, for matrices in the host's memory.
#include <cstddef>

extern "C" {

typedef struct Context {
    void* stream;
    void* workspace;
    size_t bytes;
}* cublasHandle_t;

int products = 0, last_compute_type = 0, workspaces_set = 0, destroyed = 0;

int cublasCreate_v2(cublasHandle_t* handle) {
    *handle = new Context{};
    return 0;
}

int cublasDestroy_v2(cublasHandle_t handle) {
    delete handle;
    ++destroyed;
    return 0;
}

int cublasSetStream_v2(cublasHandle_t handle, void* stream) {
    *handle = Context{stream, nullptr, 0};
    return 0;
}

int cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
    handle->workspace = workspace;
    handle->bytes = bytes;
    ++workspaces_set;
    return 0;
}

}  // extern "C"

template <class Real>
void multiply(
    bool a_transposed, bool b_transposed, int m, int n, int k, Real alpha, const Real* a, int lda, const Real* b,
    int ldb, Real beta, Real* c, int ldc) {
    for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
            Real sum = 0;
            for (int l = 0; l < k; ++l) {
                const Real left = a[a_transposed ? l + i * lda : i + l * lda];
                sum += left * static_cast<Real>(b[b_transposed ? j + l * ldb : l + j * ldb]);
            }
            Real& out = c[i + j * ldc];
            out = alpha * sum + (beta == 0 ? 0 : beta * out);
        }
    }
}

extern "C" int cublasGemmEx(
    cublasHandle_t handle, int transa, int transb, int m, int n, int k, const void*, const void*, int Atype, int lda,
    const void*, int Btype, int ldb, const void*, void*, int Ctype, int ldc, int compute, int algo) {
    const int invalid_value = 7, not_initialized = 1;
    if (!handle->workspace || handle->bytes < (1 << 20)) return not_initialized;
    if (Atype != Btype || Atype != Ctype || transa < 0 || transa > 1 || transb < 0 || transb > 1) return invalid_value;
    if (lda < (transa ? k : m) || ldb < (transb ? n : k) || ldc < m || algo != -1) return invalid_value;
    if (!(Atype == 0 && (compute == 68 || compute == 77)) && !(Atype == 1 && compute == 70)) return invalid_value;
    ++products;
    last_compute_type = compute;
    return 0;
}

// The arithmetic of cublasGemmEx, whose arguments have been checked.
extern "C" void compute_product(
    cublasHandle_t, int transa, int transb, int m, int n, int k, const void* alpha, const void* A, int Atype, int lda,
    const void* B, int, int ldb, const void* beta, void* C, int, int ldc, int, int) {
    if (Atype == 0) {
        multiply(
            transa, transb, m, n, k, *(const float*)alpha, (const float*)A, lda, (const float*)B, ldb,
            *(const float*)beta, (float*)C, ldc);
    } else {
        multiply(
            transa, transb, m, n, k, *(const double*)alpha, (const double*)A, lda, (const double*)B, ldb,
            *(const double*)beta, (double*)C, ldc);
    }
}
