"""The transposed product, both ways it is taken."""

from __future__ import annotations

import numpy as np
import pytest

from hybridnn.kernels.numpy_kernels import matmul_transposed


@pytest.mark.parametrize("with_room", [False, True])
@pytest.mark.parametrize(("k", "m", "n"), [(7, 5, 3), (1, 4, 1), (6, 2, 0), (40, 33, 16)])
def test_transposed_product(k: int, m: int, n: int, with_room: bool) -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((k, m)), random.standard_normal((k, n))
    out = np.full((m, n), np.nan)
    room = np.full((n, m), np.nan) if with_room else None
    matmul_transposed(a, b, out, room)
    expected = [[sum(a[i, row] * b[i, column] for i in range(k)) for column in range(n)] for row in range(m)]
    np.testing.assert_allclose(out, np.array(expected).reshape(m, n), rtol=1e-12, atol=1e-14)
