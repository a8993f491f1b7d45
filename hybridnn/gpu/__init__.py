"""Everything that only a GPU needs: CuPy and CUDA kernels, transports of device arrays, CUDA graphs, device choice."""
