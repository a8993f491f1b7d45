"""Recipe for Spack; copy it to ``packages/py_hybridnn/package.py`` of a repository of recipes."""

from spack.package import *


class PyHybridnn(PythonPackage):
    """Multi-layer perceptrons from scratch over MPI: batch, model and integrated parallelism, and pipelines."""

    homepage = "https://pypi.org/project/hybridnn"
    pypi = "hybridnn/hybridnn-0.1.0.tar.gz"

    license("MIT")

    version("0.1.0", sha256="0" * 64)  # of the release

    variant("cuda", default=False, description="Train on GPUs with CuPy")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    # requirements, by packaging/recipes.py
    depends_on("py-numpy@2:", type=("build", "run"))
    depends_on("py-scipy", type=("build", "run"))
    depends_on("py-pandas@2.2.2:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-greenlet@3:", type=("build", "run"))
    depends_on("py-pydantic@2:", type=("build", "run"))
    depends_on("py-typer", type=("build", "run"))
    depends_on("py-rich", type=("build", "run"))
    depends_on("py-pooch", type=("build", "run"))
    depends_on("py-matplotlib", type=("build", "run"))
    depends_on("py-threadpoolctl", type=("build", "run"))
    depends_on("py-tomli", type=("build", "run"), when="^python@:3.10")
    depends_on("py-tomli-w", type=("build", "run"))
    # end of requirements
    depends_on("py-cupy@14", type=("build", "run"), when="+cuda")
