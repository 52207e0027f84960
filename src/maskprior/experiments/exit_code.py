"""How a program of this library ends: a line on standard error instead of a traceback, and a code."""

from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool

from rich.console import Console

from maskprior.experiments.train import TrainingDivergedError


def exit_code(
    program: str, action: Callable[[], object], again: str = "the same command does the rest"
) -> int:
    """Do it: 0 = done, 2 = bad input or output, 3 = a run diverged or a worker died, 130 = interrupted.

    Args:
        program: the name before the line on standard error.
        action: what to do.
        again: what the program does if it is called again after it was stopped.
    """
    try:
        action()
    except (ValueError, OSError, ImportError) as error:
        _complain(f"{program}: error: {error}")
        return 2
    except BrokenProcessPool:
        _complain(f"{program}: a worker process died; {again}")
        return 3
    except TrainingDivergedError as error:
        _complain(f"{program}: diverged: {error}")
        return 3
    except KeyboardInterrupt:
        _complain(f"{program}: interrupted; {again}", style="")
        return 130
    return 0


def _complain(line: str, style: str = "bold red") -> None:
    Console(stderr=True).print(line, style=style, markup=False, highlight=False, soft_wrap=True)
