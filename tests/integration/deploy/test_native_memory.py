"""The compiled loops under the compiler's checks of addresses and of undefined behaviour."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = (
    *("core/test_native.py", "format/test_entries.py", "bookkeeper/test_entry.py", "bookkeeper/test_v2.py"),
    "spark/test_value_columns.py",
)


def library(compiler: str, name: str) -> Path:
    """Return what has to be loaded before Python for a check; a relative path if the compiler has none."""
    asked = [compiler, f"-print-file-name={name}"]
    return Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())


def test_they_read_nothing_but_the_data(tmp_path: Path) -> None:
    """Their tests pass with each `bytes` in memory of its own, where a read beside it ends the process."""
    compiler, headers = shutil.which("cc"), sysconfig.get_path("include")
    libraries = [library(compiler, f"lib{name}.so") for name in ("asan", "ubsan")] if compiler else []
    if compiler is None or not Path(headers, "Python.h").exists() or not all(one.is_absolute() for one in libraries):
        pytest.skip("needs a C compiler with libasan and libubsan, and Python's headers")
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-shared", "-fPIC", f"-I{headers}")
    built = tmp_path / "offloaderd_native.abi3.so"
    subprocess.run([compiler, *checks, ROOT / "native" / "offloaderd_native.c", "-o", built], check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    where = [sys.executable, "-c", "import offloaderd_native; print(offloaderd_native.__file__)"]
    used = subprocess.run(where, check=True, env=environment, capture_output=True, text=True)
    assert used.stdout.strip() == str(built)
    tests = [sys.executable, "-m", "pytest", "-n", "0", "-q", *(f"tests/unit/{name}" for name in TESTS)]
    done = subprocess.run(tests, check=False, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
