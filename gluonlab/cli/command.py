"""What all commands share: how they take options, and how they end.

A user's mistake is one line ``error: ...`` on standard error and exit status 2; a failure at run
time ends with 1, Ctrl-C with 130; SIGTERM, which is what schedulers of jobs send, ends as Ctrl-C
does with 143, and SIGHUP, from a terminal that is closed, with 129. A traceback comes only with
``--debug``.
"""

from __future__ import annotations

import errno
import importlib
import itertools
import re
import signal
import sys
import warnings
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import click

from gluonlab.cli import completion
from gluonlab.cli.interruption import all_is_said, interruptible
from gluonlab.cli.overview import HelpAll, is_overview, write_options, write_overview
from gluonlab.cli.pasted import check_dash, check_words
from gluonlab.cli.streams import complain, fill_closed, heard_or_not, nobody_reads, silence
from gluonlab.config.options import TURNED_OFF
from gluonlab.config.other_names import unknown_option
from gluonlab.errors import ConfigError, DownloadError, GluonlabError, GluonlabWarning, unknown
from gluonlab.host import out_of_memory
from gluonlab.host.out_of_memory import used_up
from gluonlab.host.signals import Terminated, ends_if_stuck, number_of
from gluonlab.host.start import explain_hidden, started_quietly
from gluonlab.plain import one_line

SEPARATOR = "--"  # behind which stand the words of another command
AS_WRITTEN = "gluonlab.cli.as_written"  # click's meta: the words of this command
OF_SIGNALS = 128  # what shells add to the number of the signal that ended a process


class Command(click.Command):
    """A click command that ends as described above.

    ``interrupted``: the words after Ctrl-C, where the KeyboardInterrupt has none of its own.
    ``most_used``: the options that --help shows, where all of them do not fit a screen.
    """

    interrupted = ""
    most_used: Sequence[str] = ()

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Carry the command out, and end the process."""
        question = completion.asked()
        if question:
            given = kwargs.get("args", args[0] if args else None)
            completion.of_command(question, self, list(given or ()))
        try:
            self._main(*args, **kwargs)
        except SystemExit as ending:
            if out_of_memory.is_ready():
                out_of_memory.end(int(ending.code or 0))
            raise

    def _main(self, *args: Any, **kwargs: Any) -> None:
        kwargs["standalone_mode"] = False
        # click's own guess lacks what `dispatch` has taken
        kwargs.setdefault("prog_name", self.name)
        given = kwargs.get("args") or (args[0] if args and args[0] is not None else sys.argv[1:])
        debug = "--debug" in itertools.takewhile(SEPARATOR.__ne__, given)
        show = warnings.showwarning
        warnings.showwarning = _show_warning(show)
        fill_closed()
        out_of_memory.prepare()
        is_process = started_quietly()
        try:
            with interruptible(), ends_if_stuck(lambda: self.interrupted, to_the_end=is_process):
                sys.exit(super().main(*args, **kwargs) or 0)
        except (KeyboardInterrupt, click.Abort) as error:  # click makes the second of the first
            interrupt = (error.__context__ if isinstance(error, click.Abort) else None) or error
            number = number_of(type(interrupt))
            how = f"ended by {number.name}" if isinstance(interrupt, Terminated) else "interrupted"
            said = _words(interrupt) or self.interrupted
            _end(": ".join(filter(None, [how, said])), OF_SIGNALS + number, prefix="")
        except click.NoSuchOption as error:
            _end(unknown_option(error.option_name, _option_names(self, error.ctx)), 2)
        except click.UsageError as error:
            _end(self._explain(error), 2)
        except DownloadError as error:
            if debug:
                raise
            _end(error.message, error.exit_status, lines=error.lines)
        except GluonlabError as error:
            if debug:
                raise
            _end(str(error), error.exit_status)
        except Exception as error:
            if debug:
                raise
            out_of_memory.make_room()
            if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
                said = f"{error.filename} is no name that a file can have: {error.strerror}"
                _end(f"{said}: give a shorter one", 2)
            hidden = explain_hidden(error)
            if hidden is not None:
                _end(hidden, 1)
            explained = used_up(error)
            if explained is not None:
                _end(str(explained), explained.exit_status)
            what = f"{type(error).__name__}: {error}"
            _end(f"{what} (run again with --debug for the traceback)", 1)
        finally:
            warnings.showwarning = show

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the options, which may print --help."""
        with self._printing():
            return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: List[str]) -> List[str]:
        """Read the words, of which ``--flip true`` is ``--flip``, and ``--flip false`` is not.

        SageMaker's images, and other services, give every option a value.
        """
        ctx.meta[AS_WRITTEN] = list(args)
        end = args.index(SEPARATOR) if SEPARATOR in args else len(args)
        check_words(args[:end], self.get_params(ctx))
        words: List[str] = []
        opposites, rest = self._flags(), list(args[:end])
        off = ctx.meta.setdefault(TURNED_OFF, set())  # what a file must not turn on
        while rest:
            word = rest.pop(0)
            value = rest[0].lower() if rest and word in opposites else ""
            if value in ("true", "false"):
                rest.pop(0)
            if value == "false" and not opposites[word]:
                off.update(each.name for each in self.params if word in each.opts)
            words += opposites[word] if value == "false" else [word]
        return super().parse_args(ctx, [*words, *args[end:]])

    def _flags(self) -> Dict[str, List[str]]:
        """Each option that takes no value, with what says its opposite, if anything does."""
        flags = [each for each in self.params if isinstance(each, click.Option) and each.is_flag]
        return {
            name: theirs[:1]
            for each in flags
            for own, theirs in ((each.opts, each.secondary_opts), (each.secondary_opts, each.opts))
            for name in own
        }

    def invoke(self, ctx: click.Context) -> Any:
        """Carry the command out."""
        with self._printing():
            return super().invoke(ctx)

    @contextmanager
    def _printing(self) -> Iterator[None]:
        """End without a word when nobody reads what is printed, as other tools do."""
        try:
            yield
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            if not nobody_reads(error, sys.stdout):
                raise
            silence(sys.stdout)
            sys.exit(OF_SIGNALS + signal.SIGPIPE)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One screen, or with --help-all everything."""
        if is_overview(self.most_used, ctx):
            write_overview(self, self.most_used, ctx, formatter)
        else:
            super().format_help(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options below their headings."""
        write_options(self, ctx, formatter)

    def _form(self) -> str:
        """The arguments that this command takes, with its first option that has a value."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        words = [param.human_readable_name for param in self.params if param not in options]
        valued = (f", such as {each.opts[0]} {each.metavar}" for each in options if each.metavar)
        example = next(valued, "")
        return " ".join([*words, *["and"] * bool(words), f"options only{example}"])

    def _lacks(self, param: click.Parameter) -> str:
        """What to write where a word is missing that the command needs."""
        if isinstance(param, click.Option):
            what = f"{param.opts[0]} {param.metavar} is missing ({one_line(param.help or '')})"
            return f"{what}; see --help"
        arguments = [each for each in self.params if isinstance(each, click.Argument)]
        form = " ".join(each.human_readable_name for each in arguments)
        return f"{param.human_readable_name} is missing: write {self.name} {form}; see --help"

    def _explain(self, error: click.UsageError) -> str:
        """What is wrong with the words of the command line, and what to write instead."""
        named = getattr(error, "option_name", None)
        options = (param for param in self.params if named in [*param.opts, *param.secondary_opts])
        option = next(options, None)
        if isinstance(option, click.Option):
            help = f"({one_line(option.help or '')}); see --help"
            if option.is_flag:
                return f"{named} takes no value: write {named} alone {help}"
            return f"{option.opts[0]} needs a value: write {option.opts[0]} {option.metavar} {help}"
        if isinstance(error, click.MissingParameter) and error.param is not None:
            return self._lacks(error.param)
        text = one_line(error.format_message()).rstrip(".")
        extra = re.match(r"Got unexpected extra arguments? \((.*)\)", text)
        if extra:
            return f"unexpected {extra[1]!r}: write {self._form()}; see --help"
        return f"{text}; see --help"


def _option_names(command: click.Command, ctx: Optional[click.Context]) -> List[str]:
    """Those of the context's command, with --help; or of the ``command`` that has no context."""
    params = ctx.command.get_params(ctx) if ctx is not None else command.params
    return [name for param in params for name in [*param.opts, *param.secondary_opts]]


def command(
    name: str,
    interrupted: str = Command.interrupted,
    settings: Mapping[str, Any] = MappingProxyType({}),
    most_used: str = "",
) -> Callable[[Callable[..., None]], Command]:
    """``@command("python -m gluonlab.x")`` makes a Command of a function, with --debug and -h.

    ``settings``: more of click's, for its context. ``most_used``: names of options.
    """

    def decorate(function: Callable[..., None]) -> Command:
        help = "show the traceback of an error"
        debug = click.option("--debug", is_flag=True, expose_value=False, help=help)
        own = {"help_option_names": ["-h", "--help"], "max_content_width": 100, **settings}
        decorator = click.command(name=name, cls=Command, context_settings=own)
        decorated: Command = decorator(debug(function))
        decorated.interrupted, decorated.most_used = interrupted, most_used.split()
        decorated.params.append(HelpAll(hidden=not most_used))
        return decorated

    return decorate


def json_option(
    what: str = "the result", where: str = "standard output"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The flag --json, which a command takes as ``as_json``."""
    help = f"print {what} as JSON, and nothing else, on {where}"
    return click.option("--json", "as_json", is_flag=True, help=help)


def main_of(module: str) -> Callable[[List[str]], Any]:
    """The ``main`` of a command's module, which is imported only when the command is called."""
    return lambda args: importlib.import_module(module).main(args)


def dispatch(
    program: str,
    commands: Mapping[str, Tuple[str, Callable[[List[str]], Any]]],
    args: Sequence[str],
) -> None:
    """Hand the words to the command that the first one names.

    ``commands``: name -> (summary, main).
    """
    question = completion.asked()
    if question and not args:
        completion.of_names(question, {name: said for name, (said, _) in commands.items()})
    name, *rest = list(args) or ["--help"]
    if name == "help" and rest[:1] and rest[0] in commands:  # as git and conda take it
        name, *rest = rest[0], *rest[1:], "--help"
    if name in ("-h", "--help", "--help-all", "help"):
        print(f"Usage: {program} COMMAND [OPTIONS]\n\nCommands:")
        width = max([8, *map(len, commands)]) + 2
        print("\n".join(f"  {name:<{width}}{said}" for name, (said, _) in commands.items()))
        print(f"\n{program} COMMAND --help lists its options.")
    elif name in commands:
        commands[name][1](rest)
    else:
        try:
            check_dash(name, ["--help"])
        except ConfigError as error:
            _end(str(error), 2)
        if name.startswith("-"):
            first = f"write a command before it, {program} COMMAND {name}"
            _end(f"unexpected {name!r}: {first}: choose {', '.join(sorted(commands))}", 2)
        _end(unknown("command", name, commands), 2)


def _words(interrupt: BaseException) -> str:
    """Those of an interrupt, or of the one before, to which another Ctrl-C came."""
    error: "BaseException | None" = interrupt
    while error is not None:
        if isinstance(error, KeyboardInterrupt) and str(error):
            return str(error)
        error = error.__context__
    return ""


def _end(text: str, status: int, prefix: str = "error: ", lines: Sequence[str] = ()) -> None:
    """``lines``: more of them, below the first."""
    with suppress(OSError), heard_or_not(sys.stdout):
        pass  # but what it has not written yet
    complain(f"{prefix}{one_line(text)}")
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        complain(f"  {indent}{one_line(line)}")
    all_is_said()
    sys.exit(status)


def _show_warning(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Shows gluonlab's own warnings as one line without the place in the code."""

    def show(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if issubclass(category, GluonlabWarning):
            complain(f"warning: {one_line(str(message))}")
        else:
            otherwise(message, category, filename, lineno, file, line)

    return show
