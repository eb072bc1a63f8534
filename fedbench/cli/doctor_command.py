"""``fedbench doctor``."""

from __future__ import annotations

import click

__all__ = ["doctor"]


@click.command()
def doctor() -> int:
    """Check this machine: cores, threads, shared memory, the extension, optional packages.

    Lines that start with `!` need attention and say what to do. The exit code is 1 if something
    that every simulation needs is missing, else 0.
    """
    from fedbench.doctor import diagnose

    findings = diagnose()
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        mark = "!" if finding.advice else " "
        click.echo(f"{mark} {finding.topic:<{width}}  {finding.value}")
        if finding.advice:
            click.echo(f"  {'':<{width}}  -> {finding.advice}")
    return 1 if any(finding.broken for finding in findings) else 0
