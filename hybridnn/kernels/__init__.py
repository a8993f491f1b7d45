"""Array arithmetic of one device, without layers and ranks: NumPy on the host, CuPy and CUDA kernels on a GPU."""
