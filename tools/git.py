"""What git says of this tree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def git(*words: str, index: Path | None = None) -> str:
    """Return what a command of git prints, over another index where one is named. Raises CalledProcessError."""
    env = {**os.environ, **({"GIT_INDEX_FILE": str(index)} if index is not None else {})}
    done = subprocess.run(["git", *words], cwd=ROOT, env=env, capture_output=True, text=True, check=True)  # noqa: S607
    return done.stdout.strip()
