# SPDX-License-Identifier: MIT
"""What can be done with the package without writing a program? Five commands."""

import argparse
import os
import sys
from collections.abc import Sequence

from deepdive.commands import anatomy, bench, generate, train, weights
from deepdive.commands.words import Stopped, Usage, complain

COMMANDS = (train, generate, bench, anatomy, weights)
ABOUT = """\
Train small models, let models write, measure, look inside, fetch trained weights.
Ask any command for its own help: python -m deepdive train --help"""
STATUS = """\
exit status: 0 done, 1 failed and said why, 2 wrong usage, 130 stopped by Ctrl+C"""
FAILURES = (OSError, ValueError, ArithmeticError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a console that lacks × shows \xd7
            stream.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(
        prog="python -m deepdive",
        description=ABOUT,
        epilog=STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        own = commands.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.__doc__,
            epilog=STATUS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(own)
        own.set_defaults(run=command.run, parser=own)
    chosen = parser.parse_args(argv)
    try:
        return chosen.run(chosen)
    except Usage as error:
        chosen.parser.error(str(error))
    except Stopped as stop:
        complain(f"\nstopped: {stop}")
        return 130
    except KeyboardInterrupt:
        complain("\nstopped")
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except FAILURES as error:
        complain(f"{chosen.parser.prog}: {error or type(error).__name__}")
        return 1
