"""Base class of all commands: options, help texts, error messages and exit statuses.

===========  =========================================
exit status  reason
===========  =========================================
2            a usage error
1            a failure at run time
130          Ctrl-C
143          SIGTERM, for example from a job scheduler
129          SIGHUP, from a closed terminal
===========  =========================================

An error is printed as one line ``error: ...`` on standard error. Tracebacks are printed only with
``--debug``.
"""

from __future__ import annotations

import _thread
import errno
import importlib
import itertools
import os
import re
import signal
import sys
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from types import FrameType, MappingProxyType
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from gluonlab.cli.old_names import SEPARATOR as SEPARATOR
from gluonlab.cli.old_names import current_words, warn_renamed
from gluonlab.cli.output_streams import (
    discard_output,
    ignore_closed_reader,
    is_reader_gone,
    open_closed_descriptors,
    print_error,
)
from gluonlab.config.command_line import DISABLED_FLAGS_KEY
from gluonlab.config.option_hints import OPTION_BY_ALIAS, nearest_option, unknown_option_message
from gluonlab.errors import ConfigError, DownloadError, GluonlabError, GluonlabWarning, name_options, unknown
from gluonlab.host import out_of_memory, signals
from gluonlab.host.out_of_memory import explain_exhausted_resource
from gluonlab.host.signals import EXCEPTION_BY_SIGNAL, RESEND_DELAY_S, Terminated, exit_if_stuck, signal_for_exception
from gluonlab.host.startup_errors import exit_immediately, explain_hidden_module, is_command_starting
from gluonlab.plain_text import one_line

WRITTEN_WORDS_KEY = "gluonlab.cli.as_written"  # key of a click context's ``meta``: the command's words
SIGNAL_STATUS_BASE = 128  # shells add this to the number of the signal that killed a process

OTHER_HEADING, OPTION_WIDTH = "Options", 24
LINES = 23  # of a terminal with 24 lines, because the shell's prompt needs a line
ALL_OPTIONS_KEY = "gluonlab.help_all"  # key of a click context's ``meta``
# the start of the details in an option's help text, which a short help text omits
_DETAILS_PATTERN = re.compile(r"; |  \[| \(default")


class MovedOption(NamedTuple):
    """An old option that a separate command has replaced.

    Attributes:
        call: The function to call with the new command's arguments.
        usage: The text of the new command, which the warning shows.
        has_value: Whether the option had a value. This value becomes the new command's first
            argument.
        value_option: An option of the new command to insert before the value.
        dropped: Flags that the old command accepted, but the new command does not.
    """

    call: Callable[[List[str]], Any]
    usage: str
    has_value: bool = True
    value_option: str = ""
    dropped: Collection[str] = ()

    def new_words(self, name: str, words: Sequence[str]) -> List[str]:
        """Convert the old command's arguments to arguments of the new command."""
        remaining, value = [word for word in words if word not in self.dropped], []
        position = next(i for i, word in enumerate(remaining) if word.partition("=")[0] == name)
        _, equals, text = remaining.pop(position).partition("=")
        if self.has_value:
            value = [text] if equals else remaining[position : position + 1]
            if not equals:
                del remaining[position : position + 1]
        return [*([self.value_option] if self.value_option and value else []), *value, *remaining]


class Command(click.Command):
    """A click command with gluonlab's error messages and exit statuses.

    ``interrupted``: the message to print after Ctrl-C if the KeyboardInterrupt has no message.
    ``most_used``: the options that --help shows; if empty, --help shows all options. ``renamed``:
    old names of options, which still work (see `gluonlab.cli.old_names`). ``moved``: old options
    that are now commands. ``refused``: maps options that only similar commands have to the reason
    why this command does not have them.
    """

    interrupted = ""
    most_used: Sequence[str] = ()
    renamed: Mapping[str, str] = MappingProxyType({})
    moved: Mapping[str, MovedOption] = MappingProxyType({})
    refused: Mapping[str, str] = MappingProxyType({})

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command, and exit the process."""
        words = kwargs.get("args", args[0] if args else None)
        completion = Completion.from_environment()
        if completion:
            completion.print_options(self, list(words or ()))
        if self.moved and self._call_moved(list(sys.argv[1:] if words is None else words)):
            return
        try:
            with name_options():
                self._main(*args, **kwargs)
        except SystemExit as exit:
            if out_of_memory.is_last_line_ready():
                out_of_memory.exit_process(int(exit.code or 0))
            raise

    def _main(self, *args: Any, **kwargs: Any) -> None:
        """Run the command, print errors and interrupts as messages, and exit with a status."""
        kwargs["standalone_mode"] = False
        # click would derive the name from sys.argv[0], without the words that `run_subcommand` removes.
        kwargs.setdefault("prog_name", self.name)
        words = kwargs.get("args") or (args[0] if args and args[0] is not None else sys.argv[1:])
        debug = "--debug" in itertools.takewhile(SEPARATOR.__ne__, words)
        show_warning = warnings.showwarning
        warnings.showwarning = _replace_showwarning(show_warning)
        open_closed_descriptors()
        out_of_memory.prepare_last_line()
        is_process = is_command_starting()
        try:
            with interrupt_on_signals(), exit_if_stuck(lambda: self.interrupted, until_exit=is_process):
                sys.exit(super().main(*args, **kwargs) or 0)
        except (KeyboardInterrupt, click.Abort) as error:  # click converts the first to the second
            interrupt = (error.__context__ if isinstance(error, click.Abort) else None) or error
            number = signal_for_exception(type(interrupt))
            cause = f"ended by {number.name}" if isinstance(interrupt, Terminated) else "interrupted"
            message = _interrupt_message(interrupt) or self.interrupted
            _exit_with_message(": ".join(filter(None, [cause, message])), SIGNAL_STATUS_BASE + number, prefix="")
        except click.NoSuchOption as error:
            # The error's context contains the command whose option is unknown.
            params = error.ctx.command.get_params(error.ctx) if error.ctx else self.params
            if error.option_name in self.refused:
                _exit_with_message(f"{error.option_name} {self.refused[error.option_name]}: remove it", 2)
            _exit_with_message(unknown_option_message(error.option_name, _option_names(params)), 2)
        except click.UsageError as error:
            _exit_with_message(self._explain_usage_error(error), 2)
        except GluonlabError as error:
            if debug:
                raise
            if isinstance(error, DownloadError):
                _exit_with_message(error.message, error.exit_status, lines=error.lines)
            _exit_with_message(str(error), error.exit_status)
        except Exception as error:
            if debug:
                raise
            out_of_memory.free_reserved_memory()
            if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
                message = f"{error.filename} is not a valid file name ({error.strerror})"
                _exit_with_message(f"{message}: choose a shorter one", 2)
            hidden_module = explain_hidden_module(error)
            if hidden_module is not None:
                _exit_with_message(hidden_module, 1)
            resource_error = explain_exhausted_resource(error)
            if resource_error is not None:
                _exit_with_message(str(resource_error), resource_error.exit_status)
            _exit_with_message(f"{type(error).__name__}: {error} (run again with --debug for the traceback)", 1)
        finally:
            warnings.showwarning = show_warning

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the options; with --help, also print the help and exit."""
        with self._exit_on_closed_output():
            return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: List[str]) -> List[str]:
        """Parse the command line. A flag may have a value: ``--flip false`` turns the flag off.

        SageMaker's images and other services add a value to every option, including flags.
        """
        args = self.translate_old_names(args, silent=ctx.resilient_parsing)
        ctx.meta[WRITTEN_WORDS_KEY] = list(args)
        end = args.index(SEPARATOR) if SEPARATOR in args else len(args)
        check_typography(args[:end], self.get_params(ctx))
        words: List[str] = []
        opposites, remaining = self._flag_opposites(), list(args[:end])
        # flags that are turned off here, so that a settings file does not turn them on
        disabled_flags = ctx.meta.setdefault(DISABLED_FLAGS_KEY, set())
        while remaining:
            word = remaining.pop(0)
            value = remaining[0].lower() if remaining and word in opposites else ""
            if value in ("true", "false"):
                remaining.pop(0)
            if value == "false" and not opposites[word]:
                disabled_flags.update(param.name for param in self.params if word in param.opts)
            words += opposites[word] if value == "false" else [word]
        return super().parse_args(ctx, [*words, *args[end:]])

    def _call_moved(self, words: List[str]) -> bool:
        """Call the new command of a moved option in ``words``. Return False if there is none."""
        options = list(dict.fromkeys(word.partition("=")[0] for word in _possible_options(words, self.params)))
        given = [name for name in options if name in self.moved]
        if not given:
            return False
        name, *others = given
        if others:
            _exit_with_message(f"{name} and {others[0]} contradict each other: remove one of them", 2)
        option = self.moved[name]
        print_error(f"warning: {name} is now a command: {option.usage}")
        option.call(option.new_words(name, words))
        return True

    def translate_old_names(self, words: Sequence[str], silent: bool = False) -> List[str]:
        """Replace old names of options in the command line; print a warning for each old name."""
        translated, replaced = current_words(words, self.params, self.renamed)
        for old, new in {} if silent else replaced.items():
            warn_renamed(old, new)
        return translated

    def _flag_opposites(self) -> Dict[str, List[str]]:
        """Map each flag to a list with its opposite, such as --no-flip, or to an empty list."""
        flags = [flag for flag in self.params if isinstance(flag, click.Option) and flag.is_flag]
        return {
            name: opposites[:1]
            for flag in flags
            for names, opposites in ((flag.opts, flag.secondary_opts), (flag.secondary_opts, flag.opts))
            for name in names
        }

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with self._exit_on_closed_output():
            return super().invoke(ctx)

    @contextmanager
    def _exit_on_closed_output(self) -> Iterator[None]:
        """Exit without a message when the reader of standard output is gone, as in ``| head``."""
        try:
            yield
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            if not is_reader_gone(error, sys.stdout):
                raise
            discard_output(sys.stdout)
            sys.exit(SIGNAL_STATUS_BASE + signal.SIGPIPE)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help text: all options, or only ``most_used`` if the command defines them.

        The short help fits a terminal of 80 columns and 24 lines. --help-all prints all options.
        """
        if not self.most_used or ALL_OPTIONS_KEY in ctx.meta:
            super().format_help(ctx, formatter)
            return
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(" ".join((self.help or "").partition("\n\n")[0].split()))
        params = [param for param in self.get_params(ctx) if not isinstance(param, HelpAll)]
        records = {param.opts[0]: param.get_help_record(ctx) for param in params}
        chosen = filter(None, (records[name] for name in self.most_used))
        with formatter.section("Common options"):
            short = [(names, _DETAILS_PATTERN.split(help)[0]) for names, help in chosen]
            formatter.write_dl(short, OPTION_WIDTH)
        count = sum(record is not None and bool(record[1]) for record in records.values())
        headings = dict.fromkeys(getattr(param, "heading", None) for param in self.params)
        names = ", ".join(heading.lower() for heading in headings if heading is not None)
        groups = f": {names}, and others" if "," in names else ""
        formatter.write_paragraph()
        formatter.write_text(f"{ctx.command_path} --help-all explains all {count} options{groups}.")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all options, grouped by their ``heading``; options without a heading are last."""
        headings: Dict[str, List[Tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and record[1]:  # others are part of the usage line
                headings.setdefault(getattr(param, "heading", OTHER_HEADING), []).append(record)
        headings[OTHER_HEADING] = headings.pop(OTHER_HEADING)  # last
        for heading, records in headings.items():
            with formatter.section(heading):
                formatter.write_dl(records, OPTION_WIDTH)

    def _describe_accepted_words(self) -> str:
        """Describe what may follow the command's name: its arguments, and an example option."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        words = [param.human_readable_name for param in self.params if param not in options]
        examples = (f", such as {option.opts[0]} {option.metavar}" for option in options if option.metavar)
        example = next(examples, "")
        return " ".join([*words, *["and"] * bool(words), f"options only{example}"])

    def _describe_missing(self, param: click.Parameter) -> str:
        """Return the message for a missing argument or option."""
        if isinstance(param, click.Option):
            description = f"{param.opts[0]} {param.metavar} is missing ({one_line(param.help or '')})"
            return f"{description}; see --help"
        names = " ".join(param.human_readable_name for param in self.params if isinstance(param, click.Argument))
        return f"{param.human_readable_name} is missing: write {self.name} {names}; see --help"

    def _explain_usage_error(self, error: click.UsageError) -> str:
        """Return the error message, which includes the fix, for a mistake in the command line."""
        name = getattr(error, "option_name", None)
        options = (param for param in self.params if name in [*param.opts, *param.secondary_opts])
        option = next(options, None)
        if isinstance(option, click.Option):
            help = f"({one_line(option.help or '')}); see --help"
            if option.is_flag:
                return f"{name} does not accept a value: write only {name} {help}"
            return f"{option.opts[0]} needs a value: write {option.opts[0]} {option.metavar} {help}"
        if isinstance(error, click.MissingParameter) and error.param is not None:
            return self._describe_missing(error.param)
        text = one_line(error.format_message()).rstrip(".")
        extra = re.match(r"Got unexpected extra arguments? \((.*)\)", text)
        if extra:
            return f"unexpected {extra[1]!r}: write {self._describe_accepted_words()}; see --help"
        return f"{text}; see --help"


def _option_names(params: Sequence[click.Parameter]) -> List[str]:
    return [name for param in params for name in (*param.opts, *param.secondary_opts)]


class HelpAll(click.Option):
    """The option --help-all. The output of --help lists this option only if it omits others."""

    def __init__(self, hidden: bool) -> None:
        super().__init__(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
            hidden=hidden, help="Show all options and exit.",
        )  # fmt: skip

    def get_help_record(self, ctx: click.Context) -> Optional[Tuple[str, str]]:
        """Return the help text of --help-all, or None if --help already shows all options."""
        return None if ALL_OPTIONS_KEY in ctx.meta else super().get_help_record(ctx)


def _show_all(ctx: click.Context, param: click.Parameter, is_given: Optional[bool]) -> None:
    """Print the help with all options, and exit (--help-all)."""
    if is_given and not ctx.resilient_parsing:
        ctx.meta[ALL_OPTIONS_KEY] = True
        click.echo(ctx.get_help())
        ctx.exit()


def command(
    name: str,
    interrupted: str = Command.interrupted,
    settings: Mapping[str, Any] = MappingProxyType({}),
    most_used: str = "",
    renamed: Mapping[str, str] = MappingProxyType({}),
    moved: Mapping[str, MovedOption] = MappingProxyType({}),
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator that makes a function a `Command` with the options --debug and -h.

    For example: ``@command("gluonlab x")``. ``settings``: additions to click's context settings.
    The other arguments are attributes of `Command`, but ``most_used`` is a single string here, with
    spaces between the options.
    """

    def make_command(function: Callable[..., None]) -> Command:
        """Make a `Command` from the function, with --debug and --help-all."""
        help = "show the traceback of an error"
        debug = click.option("--debug", is_flag=True, expose_value=False, help=help)
        context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100, **settings}
        decorator = click.command(name=name, cls=Command, context_settings=context_settings)
        decorated: Command = decorator(debug(function))
        decorated.interrupted, decorated.most_used = interrupted, most_used.split()
        decorated.renamed, decorated.moved, decorated.refused = renamed, moved, refused
        decorated.params.append(HelpAll(hidden=not most_used))
        return decorated

    return make_command


def add_json_option(
    what: str = "the result", where: str = "standard output"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the flag --json and the parameter ``as_json`` to a command."""
    help = f"print {what} on {where} as JSON, without other output"
    return click.option("--json", "as_json", is_flag=True, help=help)


def make_lazy_main(module: str) -> Callable[[List[str]], Any]:
    """Return a function that, when called, imports ``module`` and calls the module's ``main``."""
    return lambda args: importlib.import_module(module).main(args)


def run_subcommand(
    program: str,
    commands: Mapping[str, Tuple[str, Callable[[List[str]], Any]]],
    args: Sequence[str],
    renamed: Mapping[str, str] = MappingProxyType({}),
    groups: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Call the command named by the first word of ``args``, with the remaining words.

    ``commands``: name -> (summary, function to call with the remaining words). ``renamed``: old
    name of a command, which still works -> its current name. ``groups``: heading in --help -> names
    of the commands to list below it.
    """
    completion = Completion.from_environment()
    if completion and not args:
        completion.print_names({name: summary for name, (summary, _) in commands.items()})
    name, *rest = list(args) or ["--help"]
    if name in renamed:
        if completion is None:
            warn_renamed(f"{program} {name}", f"{program} {renamed[name]}")
        name = renamed[name]
    if name == "help" and rest[:1] and rest[0] in commands:  # as in git and conda
        name, *rest = rest[0], *rest[1:], "--help"
    if name in ("-h", "--help", "--help-all", "help"):
        _print_commands(program, commands, groups)
    elif name in commands:
        commands[name][1](rest)
    else:
        try:
            check_dash(name, ["--help"])
        except ConfigError as error:
            _exit_with_message(str(error), 2)
        if name.startswith("-"):
            advice = f"write a command before this option, as in {program} COMMAND {name}"
            _exit_with_message(f"unexpected {name!r}: {advice}: choose {', '.join(sorted(commands))}", 2)
        _exit_with_message(unknown("command", name, commands), 2)


def _print_commands(program: str, commands: Mapping[str, Tuple[str, Any]], groups: Mapping[str, Sequence[str]]) -> None:
    """Print the help of a program: its commands by group, on at most LINES lines."""
    width = max([8, *map(len, commands)]) + 2
    if groups:  # one line, because the commands fill the screen
        print(f"Usage: {program} COMMAND [OPTIONS]    ({program} COMMAND --help lists its options)")
    else:
        print(f"Usage: {program} COMMAND [OPTIONS]\n")
    for heading, names in (groups or {"Commands": list(commands)}).items():
        print(f"{heading}:")
        for name in names:
            print(f"  {name:<{width}}{commands[name][0]}")
    if not groups:
        print(f"\n{program} COMMAND --help lists its options.")


def _interrupt_message(interrupt: BaseException) -> str:
    """Return the first message of a KeyboardInterrupt in the chain of ``__context__``, or ""."""
    error: "BaseException | None" = interrupt
    while error is not None:
        if isinstance(error, KeyboardInterrupt) and str(error):
            return str(error)
        error = error.__context__
    return ""


def _exit_with_message(text: str, status: int, prefix: str = "error: ", lines: Sequence[str] = ()) -> None:
    """Print a message and then ``lines``, indented, on standard error, and exit."""
    with suppress(OSError), ignore_closed_reader(sys.stdout):
        pass  # only flushes
    print_error(f"{prefix}{one_line(text)}")
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        print_error(f"  {indent}{one_line(line)}")
    allow_immediate_exit()
    sys.exit(status)


def _replace_showwarning(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Return a ``warnings.showwarning`` that calls ``otherwise`` for warnings from other packages.

    The returned function prints each of gluonlab's own warnings on one line, without the file and
    line that caused it. It prints each warning only once, although a command may train several
    times.
    """
    printed: Set[str] = set()

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        """Print a warning of gluonlab on one line; pass other warnings to ``otherwise``."""
        if issubclass(category, GluonlabWarning):
            text = one_line(str(message))
            if text not in printed:
                print_error(f"warning: {text}")
            printed.add(text)
        else:
            otherwise(message, category, filename, lineno, file, line)

    return show


# --- signals


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise an exception in the block, as Ctrl-C does.

    By default, SIGTERM and SIGHUP would kill the process. Signals that the process ignores, as
    under nohup, stay ignored. Python runs signal handlers only in the main thread, so the block has
    no effect in other threads.

    A handler can run between any two instructions. In two cases its exception could get lost, so
    the signal is sent again shortly afterwards:

    - in a ``__del__``, such as that of MXNet's arrays, or in a callback from C, because Python only
      prints the exception;
    - during an import, because modules may catch the exception, and because the signal may then
      kill Python instead of making it exit with a status.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: Set[int] = set()  # signals that are about to be sent again
    hook, is_process = sys.unraisablehook, is_command_starting()

    def send_lost_again(unraisable: Any) -> None:
        """Send a signal again if its exception was only printed, as in a ``__del__``."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            send_later(signal_for_exception(unraisable.exc_type))
        else:
            hook(unraisable)

    def send_later(number: int) -> None:
        """Send a signal to this process after RESEND_DELAY_S, unless it is already pending."""
        if number not in pending:
            pending.add(number)
            # threading.Thread uses locks, which may be held when a __del__ runs
            _thread.start_new_thread(send, (number,))

    def send(number: int) -> None:
        """Wait RESEND_DELAY_S, then send a signal to this process if it is still pending."""
        time.sleep(RESEND_DELAY_S)
        if number in pending:
            pending.remove(number)
            os.kill(os.getpid(), number)

    is_over, late = False, 0  # late: a signal that came after the block

    def interrupt(number: int, frame: Optional[FrameType]) -> None:
        """Raise the exception for a signal; during an import, send the signal again later."""
        nonlocal late
        signals.note_handler_call()
        if is_over:  # restoring the handlers must not be interrupted
            late = number
            return
        if not _is_importing(frame):
            raise EXCEPTION_BY_SIGNAL[number]
        send_later(number)

    handlers = {number: signal.getsignal(number) for number in EXCEPTION_BY_SIGNAL}
    defaults = [signal.SIG_DFL, signal.default_int_handler]
    replaced = [n for n in handlers if handlers[n] in defaults or (n == signal.SIGINT and is_process)]
    for number in replaced:
        signal.signal(number, interrupt)
    sys.unraisablehook = send_lost_again
    if is_process:
        _FINAL_HANDLERS.add(interrupt)
    try:
        yield
    finally:
        is_over = True  # before any call, because each call lets a handler run
        pending.clear()
        sys.unraisablehook = hook
        for number in replaced:
            # Only Python's exit follows, and after an error the error message.
            is_last = is_process and number == signal.SIGINT
            next_handler = exit_immediately if isinstance(sys.exc_info()[1], SystemExit) else _ignore_interrupt
            signal.signal(number, next_handler if is_last else handlers[number])
        if late:
            raise EXCEPTION_BY_SIGNAL[late]


def _ignore_interrupt(number: int, frame: Optional[FrameType]) -> None:
    """Ignore another Ctrl-C while the final message is written."""
    signals.note_handler_call()


# Possible handlers of SIGINT while the final message is written: usually `_ignore_interrupt`. If
# another interrupt came just before its end, still the handler of `interrupt_on_signals`.
_FINAL_HANDLERS: Set[Any] = {_ignore_interrupt}


def allow_immediate_exit() -> None:
    """Make the next Ctrl-C exit immediately. Called after the final message has been printed."""
    if signal.getsignal(signal.SIGINT) in _FINAL_HANDLERS:
        signal.signal(signal.SIGINT, exit_immediately)


def _is_importing(frame: Optional[FrameType]) -> bool:
    """Return whether the code at ``frame`` runs as part of an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


# --- Typographic dashes and quotes
#
# Word processors replace -- by one long dash, and straight quotes by curly quotes. Users of other
# tools write -gpus with one dash. click would accept such words as arguments.

# typographic hyphens, figure dash, en dash, em dash, horizontal bar, minus sign
_TYPOGRAPHIC_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_LONG_DASH_PATTERN = re.compile(rf"[{_TYPOGRAPHIC_DASHES}][-{_TYPOGRAPHIC_DASHES}]?(?=[A-Za-z])")
_ONE_DASH_PATTERN = re.compile(r"-[A-Za-z][A-Za-z0-9_-]*[A-Za-z][A-Za-z0-9_-]*")
_OPENING, _CLOSING = "\u201c\u201d\u201e\u201f\u2018\u201a\u00ab", "\u201c\u201d\u2019\u2018\u00bb"


def check_typography(words: Sequence[str], params: Sequence[click.Parameter]) -> None:
    """Raise ConfigError for the first word with a wrong dash or curly quotes, and suggest the fix.

    ``params``: the options and arguments of the command.
    """
    options = [name for name in _option_names(params) if name.startswith("-")]
    for word in _possible_options(words, params):
        check_dash(word, options)
    for position, word in enumerate(words):
        _check_quotes(word, words[position:])


def _possible_options(words: Sequence[str], params: Sequence[click.Parameter]) -> Iterator[str]:
    """Yield the words that are options or arguments; leave out the values of options."""
    options_with_value = {
        name for param in params if isinstance(param, click.Option) and not param.is_flag for name in param.opts
    }
    previous = ""
    for word in words:
        if word == "--":
            return
        if previous not in options_with_value:
            yield word
        previous = word


def check_dash(word: str, options: Collection[str]) -> None:
    """Raise ConfigError if ``word`` is one of ``options``, written with a wrong dash."""
    option = word.partition("=")[0]
    long_dash = _LONG_DASH_PATTERN.match(option)
    if long_dash is not None:
        corrected, reason = (f"--{option[long_dash.end() :]}", "starts with a long dash from a word processor")
    elif _ONE_DASH_PATTERN.fullmatch(option) and (
        {f"-{option}"} & {*options, *OPTION_BY_ALIAS} or option[:2] not in options
    ):
        corrected, reason = f"-{option}", "starts with a single dash"
    else:
        return
    name = nearest_option(corrected, options)
    if name is not None:
        raise ConfigError(f"{option!r} {reason}: did you mean {name!r}?")


def _check_quotes(word: str, rest: Sequence[str]) -> None:
    """Raise ConfigError for a word in curly quotes, which word processors insert."""
    value = word.partition("=")[2] if word.startswith("--") else word
    is_closed = any(each[-1:] and each[-1] in _CLOSING for each in rest)
    if value[:1] and value[0] in _OPENING and is_closed and len(value) > 1:
        plain = value.strip(_OPENING + _CLOSING)
        raise ConfigError(
            f"{value!r} contains quotes from a word processor: write {plain!r}, or use straight quotes, "
            "which the shell removes"
        )


# --- Completion by the shell

PROGRAM = "gluonlab"
COMPLETION_VARIABLE = "_GLUONLAB_COMPLETE"  # environment variable, such as bash_complete
SHELLS = ("bash", "zsh", "fish")


class Completion(NamedTuple):
    """A shell's request for completions of the word at the cursor.

    ``words``: the words before the cursor. These words are handled as usual: `run_subcommand`
    passes them to a Command. When `run_subcommand` or the Command would read the next word, it
    prints the completions instead. ``prefix``: the start of the word at the cursor.
    """

    words: List[str]
    prefix: str
    shell: ShellComplete

    @classmethod
    def from_environment(cls) -> Optional[Completion]:
        """Read the shell's request for completions from an environment variable, or return None."""
        shell, _, instruction = os.environ.get(COMPLETION_VARIABLE, "").partition("_")
        if shell not in SHELLS or instruction != "complete":
            return None
        complete = _shell_complete(shell)
        return cls(*complete.get_completion_args(), complete)

    def print_names(self, names: Mapping[str, str]) -> None:
        """Print the names that start with ``prefix``, and exit. ``names``: name -> summary."""
        matches = [name for name in names if name.startswith(self.prefix)]
        self._print_items([CompletionItem(name, help=names[name]) for name in matches])

    def print_options(self, command: click.Command, words: List[str]) -> None:
        """Print the options of a command that start with ``prefix``, and exit.

        ``words``: the words that the command has received.
        """
        complete = ShellComplete(command, {}, PROGRAM, COMPLETION_VARIABLE)
        self._print_items(complete.get_completions(words, self.prefix))

    def _print_items(self, items: List[CompletionItem]) -> None:
        items = items or [CompletionItem(self.prefix, type="file")]
        print("\n".join(map(self.shell.format_completion, items)), flush=True)
        sys.exit(0)


def completion_script(shell: str) -> str:
    """Return the script that enables completion in a shell. Raises ConfigError for other shells."""
    if shell not in SHELLS:
        raise ConfigError(unknown("shell", shell, SHELLS))
    return _shell_complete(shell).source()


def _shell_complete(shell: str) -> ShellComplete:
    complete_class = get_completion_class(shell)
    assert complete_class is not None  # every version of click has these three shells
    return complete_class(click.Command(PROGRAM), {}, PROGRAM, COMPLETION_VARIABLE)
