"""Print the folder of the batch scripts, study files and machine files, which users copy and edit."""

from __future__ import annotations

from hybridnn.utils.files import shipped_folder

print(shipped_folder("hpc_jobs"))
