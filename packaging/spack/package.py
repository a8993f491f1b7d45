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
    depends_on("py-numpy@2.0:", type=("build", "run"))
    depends_on("py-scipy@1.13:", type=("build", "run"))
    depends_on("py-pandas@2.2.2:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-greenlet@3.0:", type=("build", "run"))
    depends_on("py-pydantic@2.10:", type=("build", "run"))
    depends_on("py-typer@0.19:", type=("build", "run"))
    depends_on("py-rich@13.0:", type=("build", "run"))
    depends_on("py-pooch@1.8:", type=("build", "run"))
    depends_on("py-matplotlib@3.9:", type=("build", "run"))
    depends_on("py-threadpoolctl@3.5:", type=("build", "run"))
    depends_on("py-tomli@2.0:", type=("build", "run"), when="^python@:3.10")
    depends_on("py-tomli-w@1.0:", type=("build", "run"))
    # end of requirements
    depends_on("py-cupy@14", type=("build", "run"), when="+cuda")
