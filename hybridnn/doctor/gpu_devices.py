"""Program that prints the GPUs that CuPy finds as JSON; a child process, as a driver may crash it.

``python -m hybridnn.doctor.gpu_devices``
"""

from __future__ import annotations

import json
from typing import Any


def devices() -> dict[str, Any]:
    """Versions of CuPy, driver and runtime; name and memory of every device, after a small sum on it."""
    import cupy

    runtime = cupy.cuda.runtime
    found: dict[str, Any] = {"cupy": cupy.__version__, "devices": []}
    found["driver"], found["runtime"] = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    for index in range(runtime.getDeviceCount() if found["driver"] else 0):
        with cupy.cuda.Device(index):
            name = runtime.getDeviceProperties(index)["name"].decode()
            free, total = runtime.memGetInfo()
            if int(cupy.arange(3).sum()) != 3:
                raise ArithmeticError(f"device {index} ({name}) adds wrongly")
        found["devices"].append({"name": name, "free": free, "total": total})
    return found


if __name__ == "__main__":
    print(json.dumps(devices()))
