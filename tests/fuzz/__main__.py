"""`make fuzz MINUTES=n`: every decoder of foreign bytes in turn, each for its share of the time, guided by coverage.

Each runs in a process of its own, under a limit of memory and of time for one input: a decoder that hangs or swells is
a finding too. What was found is kept as a file; `python -m tests.fuzz --target NAME --minutes 0 FILE` feeds it again.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tests.fuzz.targets import targets

ONE_INPUT_S = 10
MEMORY_MB = 2048
INPUT_BYTES_MAX = 16_384


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0), default=10.0, help="Time for all targets together.")
@click.option("--target", "names", multiple=True, help="Only these targets; all by default.")
@click.option("--findings", type=click.Path(path_type=Path), default=Path("data/fuzz"), help="Where findings are kept.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(minutes: float, names: tuple[str, ...], findings: Path, files: tuple[Path, ...]) -> None:
    """Feed foreign bytes to every decoder; exit code 1 when one of them ends in an error that is not ours."""
    every = targets()
    chosen = names or tuple(every)
    if unknown := [name for name in chosen if name not in every]:
        raise click.UsageError(f"no such target: {', '.join(unknown)}; there are {', '.join(every)}")
    for name in chosen if files else ():
        for file in files:
            every[name].feed(file.read_bytes())
    if not minutes:
        return
    findings.mkdir(parents=True, exist_ok=True)
    seconds = max(1, round(minutes * 60 / len(chosen)))
    failed = [name for name in chosen if not fuzz(name, every[name].seeds, seconds, findings)]
    click.echo(f"{len(chosen)} targets, {seconds} s each: {', '.join(failed) or 'nothing'} found")
    if failed:
        click.echo(f"the inputs are in {findings}", err=True)
        sys.exit(1)


def fuzz(name: str, seeds: tuple[bytes, ...], seconds: int, findings: Path) -> bool:
    """Fuzz one target; says whether it held."""
    with tempfile.TemporaryDirectory() as corpus:
        for number, content in enumerate(seeds):
            Path(corpus, str(number)).write_bytes(content)
        flags = [
            f"-max_total_time={seconds}",
            f"-timeout={ONE_INPUT_S}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-artifact_prefix={findings}/{name}-",
            "-print_final_stats=1",
        ]
        command = [sys.executable, "-m", "tests.fuzz.one", name, *flags, corpus]
        before = _seconds_of_children()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    counted = re.search(r"number_of_executed_units:\s*(\d+)", said)
    inputs = int(counted[1]) if counted else 0
    held = done.returncode == 0 and inputs > 0
    busy = _seconds_of_children() - before  # beside other work it is less than the time that went by
    click.echo(f"{name:<24} {inputs:>12,} inputs  {busy:>6.0f} s of a core  {'held' if held else 'FAILED'}")
    if not held:
        click.echo(said[-4000:], err=True)
    return held


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
